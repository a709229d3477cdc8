"""A bound on the memory of an update, beyond which its allocations fail as they do on a full machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import torch

from atrium.base.processes import bounded_memory


class MemoryLimit:
    """While entered, allocations fail that would take the process beyond the limit, in MB of 2^20 bytes.

    On a GPU torch's allocator keeps to it from the beginning. On a CPU it is a bound on the address space
    (Linux, macOS), above what the process has on entry: what one pass of an update may take.
    """

    def __init__(self, device: str, limit_mb: int) -> None:
        self._bytes = limit_mb << 20
        self._is_cpu = device == "cpu"
        self._bound: AbstractContextManager[None] = nullcontext()
        if not self._is_cpu:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self._bytes / total))

    def __enter__(self) -> None:
        if self._is_cpu:
            self._bound = bounded_memory(self._bytes)
        self._bound.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bound.__exit__(kind, error, trace)
