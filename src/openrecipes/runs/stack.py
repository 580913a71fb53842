"""What a run stands on: software versions, commits, GPUs, links, image, environment.

Nothing heavy is imported to find out: versions come from the installed packages' metadata, CUDA's
from torch's version file, GPUs from ``nvidia-smi``. What cannot be found is None.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from openrecipes import __version__
from openrecipes.hardware.catalogue import CPU, gpu
from openrecipes.runs.record import utc_now

#: Environment variables whose values are recorded; all others by name only.
ALLOWED_PREFIXES = (
    "NCCL_",
    "CUDA_",
    "PYTORCH_",
    "TORCH",
    "TRITON_",
    "FI_",
    "NVTE_",
    "OMP_",
    "RAY_",
    "SLURM_JOB_NUM_",
)
#: The container image, as the launcher names it: ``name`` or ``name@sha256:digest``.
IMAGE_VARIABLE = "OPENRECIPES_IMAGE"

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|_KEY", re.IGNORECASE)
_SECONDS = 20  # for one call of a program

#: Stack field to the packages that may provide it, and the module that its source is found by.
_PACKAGES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "megatron_lm": (("megatron-core", "megatron_core"), "megatron"),
    "megatron_bridge": (("megatron-bridge", "megatron_bridge"), None),
    "transformer_engine": (("transformer-engine", "transformer_engine"), None),
    "pytorch": (("torch",), None),
    "nccl": (("nvidia-nccl-cu13", "nvidia-nccl-cu12"), None),
    "deepep": (("deep-ep", "deep_ep"), None),
}
#: Engine to the name that its framework text begins with, its packages and its module.
_FRAMEWORKS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "miles": ("miles", ("miles",), "miles"),
    "automodel": ("automodel", ("nemo-automodel", "nemo_automodel"), "nemo_automodel"),
}


def capture(engine: str = "native", root: Path = Path("/")) -> dict[str, Any]:
    """The manifest's ``stack``: the recipe's stack fields, and the cloud instance.

    Args:
        engine: whose framework text is wanted.
        root: where ``/sys`` and ``/opt`` are looked for.
    """
    found: dict[str, Any] = {"engine": engine, "framework": framework(engine)}
    for name, (packages, module) in _PACKAGES.items():
        version = _version(packages)
        source = git_state(module) if module and version else None
        found[name] = _join(version, source)
    smi = nvidia_smi()
    found |= {
        "cuda": _torch_cuda(),
        "driver": smi[0]["driver"] if smi else None,
        "python": platform.python_version(),
        "network": network(len(smi), root),
        "source": f"openrecipes stack on the run's machine, {utc_now():%Y-%m-%d}",
        "image": image(os.environ),
        "instance": instance(root),
    }
    return found


def machine(root: Path = Path("/")) -> dict[str, Any]:
    """This machine: GPU type in the catalogue's word, GPUs, their memory, links, instance."""
    smi = nvidia_smi()
    device = smi[0]["name"] if smi else None
    known = gpu(device) if device else gpu(CPU)
    return {
        "gpu": known.name if known else device,
        "count": len(smi) or None,
        "gpus": [{"name": g["name"], "memory_mib": g["memory_mib"]} for g in smi],
        "cpu": _cpu_name(root),
        "cores": os.cpu_count(),
        "nics": nics(root),
        "instance": instance(root),
    }


def environment(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Variables on the allow list with their values, and the names of all others.

    A name that speaks of a secret is never recorded with its value.
    """
    values = {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(ALLOWED_PREFIXES) and not _SECRET.search(name)
    }
    return values, sorted(set(environ) - set(values))


def framework(engine: str) -> str | None:
    """The engine's framework text: version, commit and whether its tree is clean."""
    if engine == "native":
        return _join(f"openrecipes {__version__}", git_state("openrecipes"))
    word, packages, module = _FRAMEWORKS.get(engine, (engine, (engine,), engine))
    version = _version(packages)
    return _join(f"{word} {version}", git_state(module)) if version else None


def git_state(module: str) -> str | None:
    """``commit 1a2b3c4d, no local changes`` of the repository that a module's files lie in.

    None where the module is installed without its repository.
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        return None
    folder = Path(places[0])
    # A virtual environment inside some repository must not pass for that repository.
    if not _call(["git", "-C", str(folder), "ls-files", "--", "."]):
        return None
    commit = _call(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if not commit:
        return None
    status = _call(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return f"commit {commit[:8]}, {'local changes' if status else 'no local changes'}"


def nvidia_smi() -> list[dict[str, Any]]:
    """Name, memory in MiB and driver of each GPU; empty where there is none."""
    query = "--query-gpu=name,memory.total,driver_version"
    text = _call(["nvidia-smi", query, "--format=csv,noheader,nounits"])
    return parse_nvidia_smi(text or "")


def parse_nvidia_smi(text: str) -> list[dict[str, Any]]:
    """The lines ``name, MiB, driver`` of nvidia-smi's CSV; other lines are passed over."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(.+?),\s*(\d+|\[.*\]),\s*([\d.]+)\s*", line)
        if match:
            memory = int(match[2]) if match[2].isdigit() else None
            found.append({"name": match[1], "memory_mib": memory, "driver": match[3]})
    return found


def nics(root: Path = Path("/")) -> list[dict[str, Any]]:
    """RDMA devices under ``/sys/class/infiniband``: kind (EFA, InfiniBand, RoCE) and rate."""
    found = []
    for device in sorted(_listing(root / "sys/class/infiniband")):
        driver = device / "device" / "driver"
        layer = _read(device / "ports/1/link_layer") or ""
        if driver.resolve().name == "efa" or device.name.startswith("efa"):
            kind = "EFA"
        else:
            kind = "InfiniBand" if layer.lower() == "infiniband" else "RoCE"
        rate = re.match(r"\s*(\d+)", _read(device / "ports/1/rate") or "")
        found.append({"kind": kind, "gbit_per_s": int(rate[1]) if rate else None})
    return found


def network(gpus: int, root: Path = Path("/")) -> str | None:
    """The links in words: ``8 GPUs per node, 16 x EFA (aws-ofi-nccl 1.20), 200 Gb/s each``."""
    parts = [f"{gpus} GPU{'s' if gpus > 1 else ''} per node"] if gpus else []
    devices = nics(root)
    for kind in sorted({d["kind"] for d in devices}):
        same = [d for d in devices if d["kind"] == kind]
        rates = {d["gbit_per_s"] for d in same}
        plugin = _ofi_version(root) if kind == "EFA" else None
        text = f"{len(same)} x {kind}" + (f" (aws-ofi-nccl {plugin})" if plugin else "")
        rate = rates.pop() if len(rates) == 1 else None
        parts.append(text + (f", {rate} Gb/s each" if rate else ""))
    return ", ".join(parts) or None


def instance(root: Path = Path("/")) -> str | None:
    """The cloud instance, where the firmware tells it (AWS does)."""
    dmi = root / "sys/devices/virtual/dmi/id"
    vendor, product = _read(dmi / "sys_vendor"), _read(dmi / "product_name")
    return f"AWS {product}" if vendor == "Amazon EC2" and product else None


def image(environ: Mapping[str, str]) -> dict[str, str | None] | None:
    """The container image that the launcher named in the environment."""
    name, _, digest = environ.get(IMAGE_VARIABLE, "").partition("@")
    return {"name": name, "digest": digest or None} if name else None


def _ofi_version(root: Path) -> str | None:
    packages = _read(root / "opt/amazon/efa_installed_packages") or ""
    match = re.search(r"ofi-nccl[-_ ](\d+(?:\.\d+)+)", packages)
    return match[1] if match else None


def _torch_cuda() -> str | None:
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        match = re.search(
            r"^cuda\b[^=]*= '([\d.]+)'", _read(Path(place) / "version.py") or "", re.M
        )
        if match:
            return match[1]
    return None


def _version(packages: Sequence[str]) -> str | None:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def _join(version: str | None, source: str | None) -> str | None:
    return f"{version} ({source})" if version and source else version


def _cpu_name(root: Path) -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.M)
    return match[1].strip() if match else platform.machine() or None


def _call(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _listing(path: Path) -> Iterator[Path]:
    try:
        yield from path.iterdir()
    except OSError:
        return
