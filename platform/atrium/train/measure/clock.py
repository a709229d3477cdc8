"""Durations of work on a device, from events between kernels on a GPU, or from a clock."""

from __future__ import annotations

import time
from typing import Any, Self

import torch


class Span:
    """The duration of the work that is queued on a device between the span's creation and the call of `end`.

    On a GPU, call `wait` of this or a later span before `seconds`, since the duration is known only after the
    work is done.
    """

    def __init__(self, device_type: str) -> None:
        self._is_cuda = device_type == "cuda"
        self._began = self._ended = self._now()

    def end(self) -> Self:
        """Mark the end of the span's work in the queue."""
        self._ended = self._now()
        return self

    def wait(self) -> None:
        """Block the host until the device has finished all work queued before the call of `end`."""
        if self._is_cuda:
            self._ended.synchronize()

    def seconds(self) -> float:
        """Return the length of the span in seconds."""
        if not self._is_cuda:
            return float(self._ended - self._began)
        return float(self._began.elapsed_time(self._ended)) / 1e3

    def _now(self) -> Any:  # noqa: ANN401 - a time, or an event of torch.cuda, which has no types
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
