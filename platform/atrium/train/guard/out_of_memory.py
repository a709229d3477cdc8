"""Out-of-memory errors: one-line messages for them, and repetition of the work with smaller micro-batches.

PyTorch raises `torch.OutOfMemoryError` on a GPU and a plain `RuntimeError` on the CPU, recognized by its
message; numpy raises `MemoryError`. A process killed by the operating system cannot be handled here.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from atrium.base.errors import MemoryExhaustedError
from atrium.base.metrics import Quantity
from atrium.engines.collate import RolloutRows
from atrium.train.measure.clock import Span
from atrium.train.measure.measurements import Measurements
from atrium.train.ranks.ranks import Ranks
from atrium.train.update.forward import PolicyForward
from atrium.train.update.micro_batches import deal_by_tokens

_T = TypeVar("_T")
_MESSAGES = ("DefaultCPUAllocator: ", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA out of memory")
_ASKED = re.compile(r"(?:tried to allocate|unable to allocate) ([\d.]+) ?(bytes|[KMGTP]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of torch, numpy or Python means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def size_asked_for(error: BaseException) -> str:
    """Return the size of the failed allocation, such as `1.50 GiB`, or `an unknown amount`."""
    match = _ASKED.search(str(error))
    if match is None:
        return "an unknown amount"
    size = float(match[1]) * _UNITS[match[2].lower()]
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


@contextmanager
def memory_explained(phase: str, advice: str) -> Iterator[None]:
    """Turn an out-of-memory error within the block into a `MemoryExhaustedError` with advice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise exhausted(error, phase, advice) from error


def exhausted(error: BaseException, phase: str, advice: str) -> MemoryExhaustedError:
    """Return a one-line error with the phase, the size of the failed allocation, and `advice`."""
    return MemoryExhaustedError(
        f"out of memory in {phase}: could not allocate {size_asked_for(error)}; {advice} (`atrium memory` "
        "with the same settings shows what uses how much); the last checkpoint is intact"
    )


class MicroBatch(NamedTuple):
    """Indices of rows that are computed together.

    `is_real` is False if the rank has no rows left. Ranks exchange parameters in every pass, so all ranks run
    the same number of passes; the results of extra passes are ignored.
    """

    rows: NDArray[np.int64]
    is_real: bool


@dataclass
class MicroBatchBudget:
    """The maximum number of tokens in a micro-batch. With `shrinks`, it is halved when memory runs out.

    The division into micro-batches changes a gradient by no more than rounding, so a failed update can be
    repeated with smaller micro-batches. Passes run in a context that `limit` opens, which may allow less than
    the available memory. `phase` names the current work and measures its time, on a device of `device_type`.
    `recomputes` says whether activations are recomputed; the advice in error messages depends on it.
    """

    max_tokens: int
    shrinks: bool
    log: Callable[[str], None]
    measurements: Measurements
    ranks: Ranks = Ranks()
    limit: Callable[[], AbstractContextManager[None]] = nullcontext
    recomputes: bool = False
    device_type: str = "cpu"
    _phase: str = "an update"
    _num_rows: int = 0
    _num_tokens: int = 0

    @contextmanager
    def phase(self, name: str, quantity: Quantity) -> Iterator[None]:
        """Name the work in the block for out-of-memory messages, and add its seconds to `quantity`."""
        before, self._phase = self._phase, name
        span = Span(self.device_type)
        yield
        self.measurements.add_span(quantity, span.end())
        self._phase = before  # after an error, the name stays for the message

    def split(
        self, forward: PolicyForward, rows: RolloutRows, subset: NDArray[np.int64]
    ) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of `subset`, and keep the size of each for error messages."""
        parts = self._parts(forward, rows, subset)
        for number, part in enumerate(parts, 1):
            num_tokens_B = rows.num_tokens_B[part.rows]
            padded = len(part.rows) * int(num_tokens_B.max())
            self._num_rows, self._num_tokens = len(part.rows), int(num_tokens_B.sum())
            if not forward.packing:
                self._num_tokens = padded
            forward.begin_micro_batch(is_last=number == len(parts))
            yield part
        self._num_rows = 0

    def _parts(
        self, forward: PolicyForward, rows: RolloutRows, subset: NDArray[np.int64]
    ) -> list[MicroBatch]:
        """Return this rank's micro-batches. All ranks get equally many, with about equal numbers of tokens.

        A rank with too few micro-batches also gets copies of the shortest row with `is_real=False`.
        """
        if self.ranks.is_alone:
            return [MicroBatch(part, is_real=True) for part in forward.split(rows, subset, self.max_tokens)]
        shares = deal_by_tokens(*(one[subset] for one in rows.lengths), num_shares=self.ranks.size)
        cut = [forward.split(rows, subset[share], self.max_tokens) for share in shares]
        own = cut[self.ranks.rank]
        num_missing = max(len(parts) for parts in cut) - len(own)
        shortest = subset[[int(rows.num_tokens_B[subset].argmin())]] if num_missing else subset
        return [MicroBatch(part, is_real=True) for part in own] + num_missing * [
            MicroBatch(shortest, is_real=False)
        ]

    def fit(self, work: Callable[[], _T]) -> _T:
        """Call `work` and return its result; if memory runs out, repeat it with half the micro-batch size.

        `work` gets its micro-batches from `split` and starts over with each call. Raises
        `MemoryExhaustedError` if memory runs out on a single row or outside of micro-batches, or if `shrinks`
        is not set.
        """
        phase = self._phase
        while True:
            self._phase, self._num_rows = phase, 0
            try:
                with self.limit():
                    return work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if not self.shrinks or self._num_rows < 2:
                    raise exhausted(error, self._phase, self._advice()) from error
                asked = size_asked_for(error)
            # Only here, after the handler, are the tensors of the failed pass free.
            self.max_tokens = max(1, min(self.max_tokens, self._num_tokens) // 2)
            release_memory()
            self.log(
                f"out of memory in {self._phase} ({asked}): repeated, and from now on micro-batches have "
                f"at most {self.max_tokens} tokens"
            )

    def _advice(self) -> str:
        helps = "update" in self._phase and not self.recomputes  # other passes keep no activations
        again = "" if not helps else "set compute.recompute_activations=true, "
        if self._num_rows > 1:
            return f"{again}lower compute.micro_batch_tokens={self.max_tokens}, or set compute.on_oom=shrink"
        if self._num_rows == 1:
            return (
                f"its micro-batch is a single row of {self._num_tokens} tokens; {again}lower "
                "rollout.max_new_tokens, or choose a smaller model"
            )
        return "choose a smaller model, or a device with more memory"


def release_memory() -> None:
    """Collect garbage, and release the GPU memory that torch caches, if there is a GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
