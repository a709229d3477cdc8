"""The memory of this process: peaks of the run and its phases, and reuse of freed memory."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atrium.base.metrics import Quantity
from atrium.train.measure.measurements import Measurements

_KILOBYTES_PER_UNIT = 1 if sys.platform == "linux" else 1 / 1024  # ru_maxrss is in bytes on macOS

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from `mallopt` in glibc's malloc.h
_LARGEST_KEPT, _MOST_KEPT = 2**30, 2**31 - 1


def keep_freed_memory() -> bool:
    """Make the C library reuse the memory of freed tensors; return False if it has no such setting.

    The library keeps the memory of tensors of up to 1 GB, and up to 2 GB in total. By default, glibc returns
    the memory of tensors above 32 MB to the system and requests it again, page by page. On a CPU, an
    element-wise operation on a wide batch then takes twice as long.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, size) == 1
        for option, size in ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _MOST_KEPT))
    )


class PeakMemory:
    """A tracker of memory peaks.

    On a CPU, peaks cannot be reset, so only the peak of the whole process is available.
    """

    def __init__(self, device: str) -> None:
        self._device = device if device.startswith("cuda") else None
        self._highest = 0.0

    @contextmanager
    def of_phase(self, quantity: Quantity, measurements: Measurements) -> Iterator[None]:
        """Add the block's peak allocated GPU memory, in MB, to `measurements`; on a CPU, add nothing."""
        if self._device is None:
            yield
            return
        self.peak_mb()
        torch.cuda.reset_peak_memory_stats(self._device)
        yield
        measurements.add(quantity, torch.cuda.max_memory_allocated(self._device) / 2**20)

    def peak_mb(self) -> float:
        """Return the peak memory in MB: allocated on a CUDA device, or resident in the process on a CPU."""
        if self._device is None:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTES_PER_UNIT / 1024
        self._highest = max(self._highest, torch.cuda.max_memory_allocated(self._device) / 2**20)
        return self._highest
