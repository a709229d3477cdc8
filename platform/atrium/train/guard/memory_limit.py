"""A limit on the memory of an update, beyond which allocations fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from atrium.base.processes import bounded_memory


def memory_limit(device: str, limit_mb: int) -> Callable[[], AbstractContextManager[None]]:
    """Return a function that opens a context in which allocations beyond `limit_mb` MiB fail.

    On a GPU, torch's allocator enforces the limit as soon as `memory_limit` is called, also outside of the
    context. On a CPU, the limit applies to the growth of the address space since the context was entered;
    macOS does not enforce it.
    """
    num_bytes = limit_mb << 20
    if device == "cpu":
        return partial(bounded_memory, num_bytes)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total))
    return nullcontext
