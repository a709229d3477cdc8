"""A recorder that is watched: what a sweep needs to follow a run from inside its loop, and to stop it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from atrium.assemble.recording import Recorder
from atrium.records import EvaluatedSample


class RunObserver(Protocol):
    """Is told what a run records, after it is recorded; may raise `Pruned` or `Interrupted` to end it."""

    def evaluated(self, step: int, benchmark: str, results: Mapping[str, object]) -> None:
        """One evaluation has been recorded."""
        ...

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of one step have been recorded."""
        ...


@dataclass(frozen=True)
class ObservedRecorder(Recorder):
    """Records as `Recorder` does, and tells the observer."""

    observer: RunObserver

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record, show and tell the metrics of one step."""
        super().log_metrics(step, metrics)
        self.observer.stepped(step, metrics)

    def log_evaluation(
        self,
        *,
        step: int,
        benchmark: str,
        samples: Sequence[EvaluatedSample],
        results: Mapping[str, object],
    ) -> None:
        """Record, show and tell one evaluation."""
        super().log_evaluation(step=step, benchmark=benchmark, samples=samples, results=results)
        self.observer.evaluated(step, benchmark, results)
