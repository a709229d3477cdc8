"""The tracker protocol: where the loop and the evaluator put what they observe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from atrium.records import EvaluatedSample, RatioHistogram, RolloutGroup, TokenTrace


class Tracker(Protocol):
    """Receives everything a run observes. Only `sync` raises when there is no room."""

    def wants_rollouts(self, step: int) -> bool:
        """Whether this step's rollouts will be recorded, so that traces are worth making."""
        ...

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step; a step is recorded once."""
        ...

    def log_ratios(self, step: int, histogram: RatioHistogram) -> None:
        """Record how the ratios of one step are distributed."""
        ...

    def log_rollouts(
        self,
        step: int,
        groups: Sequence[RolloutGroup],
        traces: Mapping[tuple[str, int], TokenTrace],
    ) -> None:
        """Record a step's rollouts; traces are keyed by (problem_id, sample_index)."""
        ...

    def log_evaluation(
        self,
        *,
        step: int,
        benchmark: str,
        samples: Sequence[EvaluatedSample],
        results: Mapping[str, object],
    ) -> None:
        """Record one evaluation: a row per problem and sample, and its summary numbers by name."""
        ...

    def sync(self) -> None:
        """Make sure that everything recorded is on the disk; a checkpoint waits for this."""
        ...
