"""The peak memory of this process on its device."""

from __future__ import annotations

import resource
import sys

import torch

_KILOBYTES_PER_UNIT = 1 if sys.platform == "linux" else 1 / 1024  # ru_maxrss is in bytes on macOS


def peak_memory_mb(device: str) -> float:
    """Peak allocated memory on a CUDA device, peak resident memory of the process elsewhere, in MB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTES_PER_UNIT / 1024
