"""What must be right on this machine before rent is paid, each with its remedy.

``look`` gathers facts about the machine, ``examine`` judges them, for a recipe where there is one.
Nothing is started, changed or installed.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from openrecipes.architectures import configs
from openrecipes.architectures.describe import describe
from openrecipes.errors import InputError
from openrecipes.files import read_json, sha256_file
from openrecipes.flags.shell import references
from openrecipes.hardware.catalogue import CPU, gpu
from openrecipes.recipe.flags import RUN_VARIABLE, recipe_arguments
from openrecipes.recipe.schema import Recipe
from openrecipes.runs.stack import nics, nvidia_smi

Status = Literal["ok", "warning", "fail", "skipped"]

GIB = 2**30
#: Shared memory that NCCL and data loading need per GPU, and per process without one.
SHM_PER_GPU, SHM_PER_PROCESS = GIB, 64 * 2**20
#: Free disk for compiled kernels, logs and one export, beside the model's weights.
FREE_DISK = {"gpu": 20 * GIB, "cpu": GIB}
#: Open files per process that many ranks with many sockets need.
OPEN_FILES = 4096
#: fp32 master weights and Adam's two moments, in bytes per offloaded parameter.
OFFLOADED_BYTES = 12

_ENGINE_PACKAGES = {"miles": ("miles", "ray"), "automodel": ("nemo-automodel",)}


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what it is.
        status: ok, warning, fail, or skipped where it does not apply.
        found: what is there.
        expected: what should be.
        remedy: what to do; None where nothing is to do.
    """

    name: str
    status: Status
    found: str
    expected: str | None = None
    remedy: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The check as ``doctor --json`` prints it."""
        return {
            "name": self.name,
            "status": self.status,
            "found": self.found,
            "expected": self.expected,
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class Facts:
    """This machine, as far as the checks need it; sizes in bytes, None where unknown."""

    python: tuple[int, int] = (3, 11)
    packages: Mapping[str, str] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()
    gpus: tuple[Mapping[str, Any], ...] = ()
    nics: tuple[Mapping[str, Any], ...] = ()
    shared_memory: int | None = None
    free_disk: int | None = None
    memory: int | None = None
    locked_memory: int | None = None
    open_files: int = OPEN_FILES
    cores: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def look(folder: Path, environ: Mapping[str, str] | None = None) -> Facts:
    """Gather the facts; ``folder`` is where runs will be written."""
    names = ("torch", "ray", "miles", "nemo-automodel", "nvidia-nccl-cu13", "nvidia-nccl-cu12")
    return Facts(
        python=sys.version_info[:2],
        packages={name: version for name in names if (version := _version(name))},
        programs=frozenset(p for p in ("ray", "sbatch", "nvidia-smi") if shutil.which(p)),
        gpus=tuple(nvidia_smi()),
        nics=tuple(nics()),
        shared_memory=_size("/dev/shm", "total") if Path("/dev/shm").is_dir() else None,
        free_disk=_size(str(folder), "free"),
        memory=_memory(),
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        open_files=_limit(resource.RLIMIT_NOFILE) or sys.maxsize,
        cores=os.cpu_count(),
        env=dict(os.environ if environ is None else environ),
    )


def examine(facts: Facts, recipe: Recipe | None = None) -> list[Check]:
    """Every check on these facts, for ``recipe`` where there is one."""
    checks = [_python(facts), *_engine(facts, recipe)]
    if recipe is None and not facts.gpus:
        checks.append(Check("gpus", "skipped", "none on this machine"))
    elif recipe is None or _wants_gpus(facts, recipe):
        checks += _gpus(facts, recipe)
    else:
        checks.append(_processes(facts, recipe))
    checks += [_shared_memory(facts, recipe), _disk(facts, recipe), _open_files(facts)]
    checks.append(_scheduler(facts))
    if recipe is not None:
        checks += [*_offload(facts, recipe), *_links(facts, recipe)]
        checks += [*_environment(facts, recipe), *_inputs(facts, recipe)]
    return checks


def _python(facts: Facts) -> Check:
    found = ".".join(map(str, facts.python))
    if facts.python >= (3, 11):
        return Check("python", "ok", found)
    return Check("python", "fail", found, "3.11 or newer", "install Python 3.11 or 3.12")


def _engine(facts: Facts, recipe: Recipe | None) -> Iterator[Check]:
    engine = (recipe.engine if recipe else None) or "native"
    torch = facts.packages.get("torch")
    if torch is None:
        remedy = "pip install 'openrecipes[engine]'"
        yield Check("torch", "fail", "not installed", "torch 2.11 or newer", remedy)
    elif facts.gpus and "+cpu" in torch:
        remedy = "install the CUDA build of torch"
        yield Check("torch", "fail", f"{torch}, a CPU build", "a CUDA build", remedy)
    else:
        yield Check("torch", "ok", torch)
    for package in _ENGINE_PACKAGES.get(engine, ()):
        version = facts.packages.get(package)
        if version:
            yield Check(package, "ok", version)
        else:
            remedy = f"use the recipe's image, or install {package}"
            yield Check(package, "fail", "not installed", f"the {engine} engine", remedy)


def _gpus(facts: Facts, recipe: Recipe | None) -> Iterator[Check]:
    if not facts.gpus:
        remedy = "run it on a GPU machine, and install NVIDIA's driver there"
        yield Check("driver", "fail", "nvidia-smi shows no GPU", "a driver with GPUs", remedy)
        return
    yield Check("driver", "ok", str(facts.gpus[0]["driver"]))
    names = sorted({str(g["name"]) for g in facts.gpus})
    found = f"{len(facts.gpus)} x {', '.join(names)}"
    expected = f"{recipe.gpu.per_node} x {recipe.gpu.type}" if recipe else None
    known = [gpu(name) for name in names]
    types = {entry.name if entry else name for entry, name in zip(known, names, strict=True)}
    if len(types) > 1:
        remedy = "use one kind of GPU; the slowest holds up all others"
        yield Check("gpus", "fail", found, "one kind", remedy)
    elif recipe and len(facts.gpus) < recipe.gpu.per_node:
        remedy = "rent a larger machine, or make a layout for this one (openrecipes plan)"
        yield Check("gpus", "fail", found, expected, remedy)
    elif recipe and types != {recipe.gpu.type}:
        remedy = "expect another speed and memory, or rent the recipe's GPU"
        yield Check("gpus", "warning", found, expected, remedy)
    else:
        yield Check("gpus", "ok", found, expected)
    yield from _gpu_memory(facts, known[0].smi_mib if len(known) == 1 and known[0] else None)
    visible = facts.env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible.split(",")) < len(facts.gpus):
        text = f"CUDA_VISIBLE_DEVICES={visible}"
        yield Check("visible-gpus", "warning", text, "all", "unset CUDA_VISIBLE_DEVICES")
    nccl = facts.packages.get("nvidia-nccl-cu13") or facts.packages.get("nvidia-nccl-cu12")
    remedy = "install torch's CUDA build, which brings NCCL"
    yield (
        Check("nccl", "ok", nccl)
        if nccl
        else Check("nccl", "warning", "no NCCL package", "NCCL", remedy)
    )


def _gpu_memory(facts: Facts, label_mib: float | None) -> Iterator[Check]:
    memory = [g["memory_mib"] for g in facts.gpus if g.get("memory_mib")]
    if not memory:
        return
    found = f"{min(memory):,} MiB"
    if label_mib and min(memory) < 0.98 * label_mib:
        remedy = "look for MIG, another process or a smaller card; memory decides what fits"
        yield Check("gpu-memory", "warning", found, f"{label_mib:,.0f} MiB", remedy)
    else:
        yield Check("gpu-memory", "ok", found)


def _processes(facts: Facts, recipe: Recipe) -> Check:
    count, cores = recipe.gpu.count, facts.cores or 0
    if cores and cores < count:
        remedy = "expect it to be slow, or use fewer processes"
        return Check("processes", "warning", f"{cores} cores", f"{count} processes", remedy)
    return Check("processes", "ok", f"{cores} cores", f"{count} processes")


def _wants_gpus(facts: Facts, recipe: Recipe | None) -> bool:
    return bool(facts.gpus) if recipe is None else recipe.gpu.type.upper() != CPU


def _shared_memory(facts: Facts, recipe: Recipe | None) -> Check:
    ranks = recipe.gpu.per_node if recipe else max(1, len(facts.gpus))
    need = ranks * (SHM_PER_GPU if _wants_gpus(facts, recipe) else SHM_PER_PROCESS)
    if facts.shared_memory is None:
        return Check("shared-memory", "skipped", "no /dev/shm")
    expected = f"at least {_gib(need)}"
    if facts.shared_memory >= need:
        return Check("shared-memory", "ok", _gib(facts.shared_memory), expected)
    remedy = "start the container with --ipc=host, or with a larger --shm-size"
    return Check("shared-memory", "fail", _gib(facts.shared_memory), expected, remedy)


def _disk(facts: Facts, recipe: Recipe | None) -> Check:
    need = FREE_DISK["gpu" if _wants_gpus(facts, recipe) else "cpu"]
    model = configs.find(recipe.model) if recipe else None
    if model is not None:
        need += 2 * describe(model.config()).parameters
    if facts.free_disk is None:
        return Check("disk", "skipped", "unknown")
    expected = f"at least {_gib(need)} free"
    if facts.free_disk >= need:
        return Check("disk", "ok", f"{_gib(facts.free_disk)} free", expected)
    remedy = "free space, or write to a larger disk"
    return Check("disk", "fail", f"{_gib(facts.free_disk)} free", expected, remedy)


def _open_files(facts: Facts) -> Check:
    if facts.open_files >= OPEN_FILES:
        return Check("open-files", "ok", f"{facts.open_files}")
    remedy = f"ulimit -n {OPEN_FILES}"
    return Check("open-files", "warning", f"{facts.open_files}", f"at least {OPEN_FILES}", remedy)


def _scheduler(facts: Facts) -> Check:
    found = sorted(facts.programs & {"ray", "sbatch"})
    if facts.env.get("SLURM_JOB_ID"):
        found.append("inside a Slurm job")
    return Check("schedulers", "ok" if found else "skipped", ", ".join(found) or "none")


def _offload(facts: Facts, recipe: Recipe) -> Iterator[Check]:
    offload, model = recipe.layout.offload, configs.find(recipe.model)
    if offload is None or model is None or facts.memory is None:
        return
    nodes = max(1, recipe.gpu.count // recipe.gpu.per_node)
    parameters = describe(model.config()).parameters
    need = int(offload.optimizer_fraction * parameters * OFFLOADED_BYTES / nodes)
    expected = f"at least {_gib(need)} for {offload.optimizer_fraction:.0%} of the optimizer"
    if facts.memory >= need:
        yield Check("host-memory", "ok", _gib(facts.memory), expected)
    else:
        remedy = "lower layout.offload.optimizer_fraction, or rent more memory"
        yield Check("host-memory", "fail", _gib(facts.memory), expected, remedy)


def _links(facts: Facts, recipe: Recipe) -> Iterator[Check]:
    env = recipe.env or {}
    several = recipe.gpu.count > recipe.gpu.per_node
    kinds = sorted({str(nic["kind"]) for nic in facts.nics})
    found = ", ".join(f"{sum(n['kind'] == k for n in facts.nics)} x {k}" for k in kinds) or "none"
    if env.get("FI_PROVIDER") == "efa" and "EFA" not in kinds:
        status: Status = "fail" if several else "warning"
        remedy = "attach EFA to the instance, or take FI_PROVIDER out of env"
        yield Check("links", status, found, "EFA, as env asks for", remedy)
    elif several and not kinds:
        remedy = "use machines with EFA or InfiniBand; over plain TCP the measured rate is lost"
        yield Check("links", "fail", found, "RDMA between machines", remedy)
    elif several:
        yield Check("links", "ok", found)
    if several and facts.locked_memory is not None:
        remedy = "ulimit -l unlimited (--ulimit memlock=-1 for a container)"
        yield Check("locked-memory", "warning", _gib(facts.locked_memory), "unlimited", remedy)


def _environment(facts: Facts, recipe: Recipe) -> Iterator[Check]:
    for name, value in (recipe.env or {}).items():
        if "$" not in value and facts.env.get(name, value) != value:
            text = f"{name}={facts.env[name]}"
            yield Check("environment", "warning", text, f"{name}={value}", f"unset {name}")


def _inputs(facts: Facts, recipe: Recipe) -> Iterator[Check]:
    for name, meaning in _variables(recipe).items():
        value = facts.env.get(name)
        if not value:
            yield Check(f"input {name}", "fail", "not set", meaning, f"export {name}=...")
        elif not Path(value).exists():
            remedy = f"correct {name}"
            yield Check(f"input {name}", "fail", f"{value} is not there", meaning, remedy)
        else:
            yield _content(name, Path(value), meaning, recipe)


def _variables(recipe: Recipe) -> dict[str, str]:
    """The recipe's inputs; where it lists none, the variables that its command looks up.

    Without the run's own place, which `openrecipes run` gives and which is not there yet.
    """
    if recipe.inputs is not None:
        return {name: text for name, text in recipe.inputs.items() if name != RUN_VARIABLE}
    env = recipe.env or {}
    texts = [*env.values()]
    for value in recipe_arguments(recipe).values():
        texts += value if isinstance(value, list) else [value] if isinstance(value, str) else []
    names = dict.fromkeys(name for text in texts for name in references(text))
    known = {*env, RUN_VARIABLE}
    return {name: "a path that the command needs" for name in names if name not in known}


def _content(name: str, path: Path, meaning: str, recipe: Recipe) -> Check:
    """Whether a checkpoint or a rows file is the recipe's own."""
    ok = Check(f"input {name}", "ok", str(path), meaning)
    config = path / "config.json" if path.is_dir() else path if path.suffix == ".json" else None
    params = recipe.result.active_params if recipe.result else None
    if config is not None and config.is_file() and params is not None:
        try:
            count = describe(read_json(config)).active_parameters
        except InputError as error:
            return Check(ok.name, "fail", str(error), recipe.model, "give the recipe's model")
        if count != params.count:
            found, expected = f"{count:,} active parameters", f"{params.count:,}"
            return Check(ok.name, "fail", found, expected, f"give {recipe.model}")
    dataset = recipe.workload.dataset
    digest = dataset.build.parquet_sha256 if dataset and dataset.build else None
    if path.suffix == ".parquet" and digest and sha256_file(path) != digest:
        remedy = "build the recipe's rows (openrecipes rows verify tells what differs)"
        return Check(ok.name, "warning", "another parquet file", f"sha256 {digest}", remedy)
    return ok


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _size(path: str, which: str) -> int | None:
    """Total or free bytes of the file system of ``path``, or of its nearest existing parent."""
    place = Path(path).resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return int(getattr(shutil.disk_usage(place), which))
    except OSError:
        return None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft
