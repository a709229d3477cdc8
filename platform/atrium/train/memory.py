"""The peak memory of this process on its device, of the whole run and, on CUDA, of each phase of a step."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atrium.metrics import Quantity
from atrium.train.measurements import Measurements

_KILOBYTES_PER_UNIT = 1 if sys.platform == "linux" else 1 / 1024  # ru_maxrss is in bytes on macOS


class PeakMemory:
    """Keeps account of peaks; on a CPU, where they cannot be reset, only of that of the whole process."""

    def __init__(self, device: str) -> None:
        self._device = device if device.startswith("cuda") else None
        self._highest = 0.0

    @contextmanager
    def of_phase(self, quantity: Quantity, measurements: Measurements) -> Iterator[None]:
        """Add the peak allocated memory within the block, in MB; nothing on a CPU."""
        if self._device is None:
            yield
            return
        self.peak_mb()
        torch.cuda.reset_peak_memory_stats(self._device)
        yield
        measurements.add(quantity, torch.cuda.max_memory_allocated(self._device) / 2**20)

    def peak_mb(self) -> float:
        """Peak allocated memory on a CUDA device, peak resident memory of the process elsewhere, in MB."""
        if self._device is None:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTES_PER_UNIT / 1024
        self._highest = max(self._highest, torch.cuda.max_memory_allocated(self._device) / 2**20)
        return self._highest
