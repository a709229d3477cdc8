"""A run's provenance: code, packages, machine and data, for `provenance.json`.

The only recorded environment variables are those for threads, devices and determinism. `redact` removes
secrets from the records. This module does not import torch; it reads the GPUs from `nvidia-smi`.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import psutil

import atrium
from atrium.base import plugins
from atrium.runs.redaction import redact

MAX_DIFF_BYTES = 256_000
_GIT_TIMEOUT_S = 10.0
_RECORDED_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTHONHASHSEED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProvenance:
    """Facts about the data, the grader, the prompts and the model's source, which the caller provides.

    A field is None if it does not apply. `prompt_hashes` are hashes of the rendered prompts, by problem set.
    `model_source` contains hashes of the parts of the loaded model, or the commit on the Hub.
    """

    dataset_revision: str | None = None
    dataset_content_hash: str | None = None
    benchmark_content_hashes: Mapping[str, str] | None = None
    prompt_template_hash: str | None = None
    grader_version: str | None = None
    prompt_hashes: Mapping[str, str] | None = None
    model_source: Mapping[str, str] | None = None


def collect_provenance(
    data: DataProvenance,
    *,
    num_threads: int | None = None,
    project_dir: Path | None = None,
    extra: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return the content of `provenance.json`; unknown values are null.

    `project_dir` is the git checkout whose commit and changes are recorded; by default, the checkout from
    which Atrium was imported. `extra` contains further entries, such as engine versions.
    """
    environment = os.environ
    return {
        "atrium": atrium.__version__,
        "code": code_version(project_dir or checkout_dir(), environment),
        "plugins": plugins.records(),
        "command": redact(shlex.join(sys.argv), environment),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "hardware": hardware(),
        "num_threads": num_threads,
        "environment": {
            name: redact(environment[name], environment)
            for name in _RECORDED_VARIABLES
            if name in environment
        },
        "data": asdict(data),
        **(extra or {}),
    }


def checkout_dir() -> Path | None:
    """Return the root of the checkout that contains the package, or None for an installed wheel."""
    root = Path(atrium.__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def code_version(
    project_dir: Path | None, environment: Mapping[str, str], *, but: Sequence[Path] = ()
) -> dict[str, object]:
    """Return a checkout's `commit`, its `diff` against the commit, `is_dirty`, and its `untracked` files.

    The diff is redacted and truncated to `MAX_DIFF_BYTES`, and at most 200 untracked files are named. Changes
    below the paths in `but`, such as files that the command itself writes, are left out. Without a checkout
    or git, the values are None and `untracked` is empty. If git can read the commit but not the diff, `diff`
    is None; if it cannot list the untracked files, `untracked` is empty. In both cases, `is_dirty` is True if
    the rest shows a change, and None otherwise.
    """
    unknown: dict[str, object] = {"commit": None, "diff": None, "is_dirty": None, "untracked": []}
    if project_dir is None:
        return unknown
    commit = _git(project_dir, "rev-parse", "HEAD")
    if commit is None:
        return unknown
    counted = ("--", ".", *(f":(exclude){path.resolve()}" for path in but))
    diff = _git(project_dir, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", *counted)
    untracked = _git(project_dir, "ls-files", "--others", "--exclude-standard", *counted)
    return {
        "commit": commit.strip(),
        "diff": None if diff is None else _shareable(diff, environment),
        "is_dirty": True if diff or untracked else None if None in (diff, untracked) else False,
        "untracked": [redact(name, environment) for name in (untracked or "").splitlines()[:200]],
    }


def commit_of(path: Path) -> str | None:
    """Return the last commit that changed a file, or None if it has uncommitted changes or git fails."""
    if _git(path.parent, "status", "--porcelain", "--", path.name) != "":
        return None
    return (_git(path.parent, "log", "-1", "--format=%H", "--", path.name) or "").strip() or None


def package_versions() -> dict[str, str]:
    """Return the version of every installed package, by name in lower case."""
    found = {}
    for distribution in metadata.distributions():
        described = distribution.metadata  # read from a file on each access
        # A damaged installation may have no name or version.
        name = described["Name"] if described else None
        if name:
            found[name.lower()] = described["Version"] or "unknown"
    return dict(sorted(found.items()))


def hardware() -> dict[str, object]:
    """Return the CPU model, the numbers of cores, the memory in MiB, and the GPUs.

    There are numbers of physical cores, of logical cores, and of those that this process may use. The memory
    is that of the machine; the container's limit is a separate value.
    """
    return {
        "cpu": cpu_model(),
        "num_physical_cores": psutil.cpu_count(logical=False),
        "num_logical_cores": psutil.cpu_count(),
        "num_usable_cores": num_usable_cores(),
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "memory_limit_mb": memory_limit_mb(),
        "gpus": gpus(),
    }


def cpu_model() -> str:
    """Return the processor's name as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def num_usable_cores() -> int:
    """Return the number of logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_limit_mb() -> int | None:
    """Return the memory limit of the container in MiB, or None if there is none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = int(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return limit // 2**20 if limit < 2**60 else None
    return None


def gpus() -> list[dict[str, str]]:
    """Return the name, memory and driver of each GPU from `nvidia-smi`, or no GPUs if this fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    output = _output([program, *query], timeout_s=10.0) or ""
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [{"name": row[0], "memory": row[1], "driver": row[2]} for row in rows if len(row) == 3]


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version (major, minor) that the GPU driver supports, or None if unknown."""
    program = shutil.which("nvidia-smi")
    output = None if program is None else _output([program], timeout_s=10.0)
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", output or "")
    return None if found is None else (int(found[1]), int(found[2]))


def _git(folder: Path, *arguments: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    return _output([program, "-C", str(folder), *arguments], timeout_s=_GIT_TIMEOUT_S)


def _output(command: list[str], *, timeout_s: float) -> str | None:
    """Return the standard output of a command, or None if it fails, times out, or does not exist."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _shareable(diff: str, environment: Mapping[str, str]) -> str:
    """Return the diff without secrets, truncated to `MAX_DIFF_BYTES`.

    Secrets are removed from the first `2 * MAX_DIFF_BYTES` characters before the truncation, so that a secret
    at the cut is still complete when it is searched for.
    """
    searched = diff[: 2 * MAX_DIFF_BYTES]
    data = redact(searched, environment).encode("utf-8", "replace")
    if len(data) <= MAX_DIFF_BYTES and searched == diff:
        return data.decode()
    kept = data[:MAX_DIFF_BYTES].decode("utf-8", "ignore")
    return f"{kept}\n[cut: {len(diff)} characters in all]\n"
