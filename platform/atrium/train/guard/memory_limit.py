"""A bound on the memory of an update, beyond which its allocations fail as they do on a full machine."""

from __future__ import annotations

import resource
from types import TracebackType

import psutil
import torch


class MemoryLimit:
    """While entered, allocations fail that would take the process beyond the limit, in MB of 2^20 bytes.

    On a GPU torch's allocator keeps to it from the beginning. On a CPU it is a bound on the address space
    (Linux, macOS), above what the process has on entry: what one pass of an update may take.
    """

    def __init__(self, device: str, limit_mb: int) -> None:
        self._bytes = limit_mb << 20
        self._is_cpu = device == "cpu"
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        if not self._is_cpu:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self._bytes / total))

    def __enter__(self) -> None:
        if self._is_cpu:
            soft, hard = self._before
            wanted = psutil.Process().memory_info().vms + self._bytes
            finite = [bound for bound in (wanted, soft, hard) if bound != resource.RLIM_INFINITY]
            resource.setrlimit(resource.RLIMIT_AS, (min(finite), hard))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_cpu:
            resource.setrlimit(resource.RLIMIT_AS, self._before)
