"""The tracker protocol: where the loop and the evaluator put what they observe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from atrium.records import FinishReason, Problem, RolloutGroup, VerdictKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrace:
    """What the objective saw and did at each token of one rollout; lists of T values.

    `ratio` is the gate ratio after the step's last update that used the token, `clipped` is +1 where
    that update cut its gradient on the high side, -1 on the low side, 0 where it did not.

    Examples
    --------
    A right answer of three tokens; the second has left a window that ends at 1.2, and is cut there:

    >>> trace = TokenTrace(
    ...     advantage=(0.7, 0.7, 0.7), ratio=(1.0, 1.25, 0.98), entropy=(0.1, 1.3, 0.0), clipped=(0, 1, 0)
    ... )
    >>> sum(trace.clipped)
    1
    """

    advantage: tuple[float, ...]
    ratio: tuple[float, ...]
    entropy: tuple[float, ...]
    clipped: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioHistogram:
    """How the gate ratios of one step are distributed over N bins, by the sign of the token's advantage.

    `edges` are the bins' bounds, N + 1 increasing ratios; the outermost ones hold what lies beyond them
    too. Each of the others counts tokens per bin.
    """

    edges: tuple[float, ...]
    positive: tuple[int, ...]
    negative: tuple[int, ...]
    zero: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSample:
    """One sampled answer to one benchmark problem: a row of an evaluation's Parquet file."""

    problem: Problem
    sample_index: int
    text: str
    verdict: VerdictKind
    reason: str
    extracted: str | None
    is_correct: bool
    num_tokens: int
    finish_reason: FinishReason
    logprob_sum: float


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
