"""Joining the other ranks: environment variables as torchrun sets them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from openrecipes.engine.parallel.mesh import forget_groups

#: File descriptor of a bound, listening socket that the local launcher hands to rank 0.
STORE_SOCKET = "OPENRECIPES_STORE_SOCKET"


@dataclass(frozen=True)
class World:
    """This process among all: its rank, their number, its device."""

    rank: int
    size: int
    device: torch.device


@contextmanager
def join(timeout_minutes: float) -> Iterator[World]:
    """Join the process group that RANK and WORLD_SIZE tell of; leave it at the end.

    Without these variables, or with a world of 1, there is no process group.

    Args:
        timeout_minutes: time limit of a collective, and of the others' arrival.
    """
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if size == 1:
        yield World(0, 1, device)
        return
    limit = timedelta(minutes=timeout_minutes)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = _store(rank, size, limit)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    try:
        yield World(rank, size, device)
    finally:
        forget_groups()
        dist.destroy_process_group()


def _store(rank: int, size: int, limit: timedelta) -> Store:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    socket = os.environ.get(STORE_SOCKET) if rank == 0 else None
    if socket is not None:
        return TCPStore(host, port, size, True, limit, master_listen_fd=int(socket))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun holds the store
        return TCPStore(host, port, size, False, limit)
    return TCPStore(host, port, size, rank == 0, limit)
