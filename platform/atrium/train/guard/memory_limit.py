"""A bound on the memory of an update, beyond which its allocations fail as they do on a full machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from atrium.base.processes import bounded_memory


def memory_limit(device: str, limit_mb: int) -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which allocations beyond the limit, in MB of 2^20 bytes, fail.

    On a GPU torch's allocator keeps to it from the beginning. On a CPU it is a bound on the address space
    (Linux, macOS), above what the process has on entry: what one pass of an update may take.
    """
    num_bytes = limit_mb << 20
    if device == "cpu":
        return partial(bounded_memory, num_bytes)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total))
    return nullcontext
