"""A tracker that records nothing: for the processes of a run that do not write its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atrium.records import EvaluatedSample, RatioHistogram, RolloutGroup, TokenTrace


class SilentTracker:
    """Takes everything that a run observes, and keeps none of it. Rank 0 sees and records the same."""

    def begin(self, *, step: int, num_steps: int) -> None:
        """Training goes on after `step`."""

    def wants_rollouts(self, step: int) -> bool:
        """Never."""
        del step
        return False

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of one step."""

    def log_ratios(self, step: int, histogram: RatioHistogram) -> None:
        """How the ratios of one step are distributed."""

    def log_rollouts(
        self,
        step: int,
        groups: Sequence[RolloutGroup],
        traces: Mapping[tuple[str, int], TokenTrace],
    ) -> None:
        """The rollouts of one step."""

    def log_evaluation(
        self,
        *,
        step: int,
        benchmark: str,
        samples: Sequence[EvaluatedSample],
        results: Mapping[str, object],
    ) -> None:
        """One evaluation."""

    def sync(self) -> None:
        """Do nothing: there is nothing to bring to the disk."""
