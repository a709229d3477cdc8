"""A tracker of storages: how many bytes of tensors are alive at once, and the most that were.

Seen is every tensor that a dispatched operation makes, in the backward pass too, until its storage is freed.
What a kernel takes for itself is not, nor what is made with modes disabled, as in the reference attention.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageTracker(TorchDispatchMode):
    """Counts the bytes of storages from the first time that it sees them; `peak` is the most at once."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._track(tensors)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # Python does not ask for what is dispatched: no mode of functions, such as a pretended GPU, sees it.
        with torch._C.DisableTorchFunction():
            result = func(*args, **(kwargs or {}))
            self._track(one for one in tree_leaves(result) if isinstance(one, Tensor))
        return result

    def restart(self) -> int:
        """The peak so far, for which what is alive now begins anew."""
        peak, self.peak = self.peak, self.alive
        return peak

    def _track(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage not in self._seen:
                self._seen.add(storage)
                weakref.finalize(storage, self._forget, storage.nbytes()).atexit = False
                self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)

    def _forget(self, num_bytes: int) -> None:
        self.alive -= num_bytes
