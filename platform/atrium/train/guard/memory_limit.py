"""A limit on the memory of an update, beyond which allocations fail as on a full machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from atrium.base.processes import bounded_memory


def memory_limit(device: str, limit_mb: int) -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which allocations beyond the limit, in MB of 2^20 bytes, fail.

    On a GPU torch's allocator enforces it from the start. On a CPU it limits the address space (Linux,
    macOS), relative to the process's size on entry: the memory of one pass of an update.
    """
    num_bytes = limit_mb << 20
    if device == "cpu":
        return partial(bounded_memory, num_bytes)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total))
    return nullcontext
