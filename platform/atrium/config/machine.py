"""Resolution of `auto` settings by rules that depend on the model and the machine, but not on timing.

A rule always returns the same value for the same model and machine, so that runs are repeatable. The value
is stored in the configuration and reused on resume. This module does not import torch, because the number
of threads must be set in the environment before torch is imported. The rule for threads is based on
measurements: on a shared machine, a second thread does not accelerate a model of about 100,000 parameters,
and makes it 7 to 40 times slower if OpenMP threads busy-wait.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrium.base.errors import install_command
from atrium.base.loading import installed_version

_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
_SMALL_BATCH_TOKENS = 4096
LARGE_BATCH_TOKENS = 16384
"""Number of tokens per micro-batch above which no device computes faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The properties of a machine on which the rules depend.

    `num_cores` is the number of usable physical cores. `requested_threads` is the number of threads set in
    the environment, or None if it is not set.
    """

    num_cores: int
    requested_threads: int | None
    has_cuda: bool
    has_vllm: bool = False
    num_gpus: int = 0


def this_machine() -> Machine:
    """Return the properties of this machine and of the environment of this process."""
    return Machine(
        num_cores=num_usable_cores(),
        requested_threads=_requested_threads(),
        has_cuda=_has_cuda(),
        has_vllm=importlib.util.find_spec("vllm") is not None,
        num_gpus=len(visible_gpus()),
    )


def machine_with_gpu() -> Machine:
    """Return the properties of a hypothetical machine with one GPU, vLLM, and this machine's cores.

    It is used to predict runs on a machine other than this one.
    """
    return Machine(
        num_cores=num_usable_cores(), requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=1
    )


def resolve_auto(data: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Return a copy of a configuration with the `auto` settings of `compute` resolved by `AUTO_RULES`.

    Some rules keep `auto`, which the run resolves at its start. Malformed values are left unchanged and are
    reported later by the validation.
    """
    compute, model = data.get("compute"), data.get("model")
    if not isinstance(compute, dict) or not isinstance(model, dict):
        return dict(data)
    is_tiny = model.get("kind") == "tiny"
    resolved = dict(compute)
    for key, rule in AUTO_RULES.items():
        if resolved.get(key) == "auto":
            resolved[key] = rule(is_tiny, resolved, machine)
    return {**data, "compute": resolved}


def engine_choice(model_kind: object, device: object, machine: Machine) -> tuple[str, str]:
    """Return the engine that `rollout.engine=auto` selects, and a short reason for the choice."""
    if model_kind == "tiny":
        return "transformers", "the built-in model is too small to benefit from vLLM"
    if device != "cuda":
        return "transformers", "there is no GPU for vLLM"
    if not machine.has_vllm:
        return "transformers", f"vLLM is not installed: {install_command('gpu')}"
    return "vllm", "there is a GPU, and vLLM is installed"


def num_usable_cores() -> int:
    """Return the number of physical cores that this process may use, at least 1.

    The number is limited by the CPU affinity and by the quota of the control groups.
    """
    import psutil  # here because `messages`, which other trainers load, imports this module

    cores = _physical_cores(_usable_cpus()) or psutil.cpu_count(logical=False) or 1
    quota = _cgroup_quota()
    return max(1, cores if quota is None else min(cores, math.floor(quota)))


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use.

    These are the entries of CUDA_VISIBLE_DEVICES if it is set. Otherwise, they are the numbers of all devices
    `/dev/nvidia*`, as strings.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = (device.strip() for device in visible.split(","))
        return tuple(device for device in devices if device not in ("", "-1"))
    numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(sorted(numbers, key=int))


_Resolved = Mapping[str, Any]
"""The settings of `compute`, in which the results of earlier rules replace `auto`."""


def _device(is_tiny: bool, _compute: _Resolved, machine: Machine) -> str:
    # The built-in model is too small for a GPU: launching its kernels takes longer than computing them.
    return "cuda" if machine.has_cuda and not is_tiny else "cpu"


def _dtype(is_tiny: bool, compute: _Resolved, _machine: Machine) -> str:
    return "bfloat16" if compute.get("device") == "cuda" and not is_tiny else "float32"


def _num_processes(_is_tiny: bool, compute: _Resolved, machine: Machine) -> int:
    return max(1, machine.num_gpus) if compute.get("device") == "cuda" else 1


def _num_threads(is_tiny: bool, compute: _Resolved, machine: Machine) -> int:
    if machine.requested_threads is not None:
        return machine.requested_threads
    num_processes = compute.get("num_processes", 1)
    if not isinstance(num_processes, int) or num_processes < 1:
        num_processes = 1  # validation reports the invalid number later
    return 1 if is_tiny else max(1, machine.num_cores // num_processes)


def _micro_batch_tokens(is_tiny: bool, compute: _Resolved, _machine: Machine) -> int | str:
    is_cuda = compute.get("device") == "cuda"
    is_alone = compute.get("num_processes", 1) == compute.get("num_nodes", 1) == 1
    if (is_cuda and not is_tiny) or (is_alone and compute.get("memory_limit_mb") is not None):
        return "auto"  # resolved later: one process finds the size by trial, several use a predicted size
    return LARGE_BATCH_TOKENS if is_tiny or is_cuda else _SMALL_BATCH_TOKENS


def _recompute_activations(is_tiny: bool, compute: _Resolved, _machine: Machine) -> str | bool:
    has_limit = compute.get("memory_limit_mb") is not None
    # On a GPU, the choice depends on the longest row, which is unknown before the data are loaded.
    return "auto" if has_limit or (compute.get("device") == "cuda" and not is_tiny) else False


def _packing(is_tiny: bool, _compute: _Resolved, _machine: Machine) -> str | bool:
    return is_tiny or "auto"  # resolved later, by a comparison of packed and unpacked outputs of the model


def _compile(is_tiny: bool, compute: _Resolved, _machine: Machine) -> str | bool:
    # On a GPU, `auto` is resolved when the run knows its packing; on a CPU, compiled blocks are slower.
    return "auto" if compute.get("device") == "cuda" and not is_tiny else False


def _requested_threads() -> int | None:
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) >= 1 else None


def _has_cuda() -> bool:
    """Return whether a GPU is visible and torch's build supports CUDA, without importing torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return torch_has_cuda() and any(Path(device).exists() for device in _GPU_DEVICES)


def torch_has_cuda() -> bool:
    """Return whether the installed torch may support CUDA.

    This is false on macOS, for versions that end in `+cpu`, and if torch is not installed.
    """
    version = installed_version("torch")
    return version is not None and not version.endswith("+cpu") and sys.platform != "darwin"


def _usable_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set()


def _physical_cores(cpus: set[int]) -> int:
    """Return the number of physical cores of the given logical CPUs, or 0 if it is unknown."""
    cores = set()
    for cpu in cpus:
        topology = _CPU_TOPOLOGY / f"cpu{cpu}" / "topology"
        try:
            package = (topology / "physical_package_id").read_text()
            cores.add((package, (topology / "core_id").read_text()))
        except OSError:
            return 0
    return len(cores)


def _cgroup_quota() -> float | None:
    """Return the smallest CPU quota of the process's control groups, in CPUs, or None without a quota."""
    quotas = [quota for folder in _cgroup_folders() if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _cgroup_folders() -> list[Path]:
    """Return the folders of the process's control groups (v1 and v2) that may contain CPU quotas."""
    folders = [_CGROUP, _CGROUP / "cpu"]
    try:
        groups = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return folders
    for path in (line[3:].strip("/") for line in groups if line.startswith("0::")):
        own = _CGROUP / path
        folders += [own, *(parent for parent in own.parents if parent.is_relative_to(_CGROUP))]
    return folders


def _quota_of(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        granted = int((folder / "cpu.cfs_quota_us").read_text())
        return granted / int((folder / "cpu.cfs_period_us").read_text()) if granted > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


AUTO_RULES: Mapping[str, Callable[[bool, _Resolved, Machine], str | int]] = {
    # The order matters: later rules read the results of earlier ones.
    "device": _device,
    "num_processes": _num_processes,
    "dtype": _dtype,
    "num_threads": _num_threads,
    "micro_batch_tokens": _micro_batch_tokens,
    "recompute_activations": _recompute_activations,
    "packing": _packing,
    "compile": _compile,
}
AUTO_KEYS = frozenset(f"compute.{key}" for key in AUTO_RULES)
"""Settings whose `auto` a rule replaces during composition, or keeps for the run to resolve at its start."""
