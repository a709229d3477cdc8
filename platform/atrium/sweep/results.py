"""Results of seeds and trials: records in the storage, means, and standard errors.

Axes: S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from atrium.stats.seeds import Mean, mean_over_seeds

FINISHED, DIVERGED, PRUNED, RUNNING = "finished", "diverged", "pruned", "running"
"""States of one seed of a trial."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run of a trial: its directory and its results.

    Shares are from 0 to 1. `mean_at_k`, `pass_at_k` and `curve` (step, Mean@K, Pass@K) are measured on
    validation problems. `problem_means` are the Mean@K of these problems, in the benchmark's order. `test`
    maps the name of each test benchmark to the last result on it. Each of these results contains
    `problem_means`, and, if the benchmark has clusters, `clusters` with the index of each problem's cluster.
    `metrics` are means over the last quarter of the steps. `collapse` says why the run counts as collapsed;
    it is empty if the run did not collapse, and None if this was not checked.
    """

    seed: int
    state: str = RUNNING
    run: str | None = None
    reason: str | None = None
    step: int = 0
    k: int | None = None
    mean_at_k: float | None = None
    pass_at_k: float | None = None
    curve: tuple[tuple[int, float, float], ...] = ()
    problem_means: tuple[float, ...] = ()
    test: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    collapse: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    wall_s: float = 0.0

    @property
    def outcome(self) -> Mapping[str, Mapping[str, Any]]:
        """The test results after the run's last step, or in the step at which the run diverged.

        If the diverged policy was not evaluated on a benchmark, all of its answers to this benchmark count as
        wrong.
        """
        if self.state == DIVERGED:
            return {
                name: scores if scores["step"] > self.step else always_wrong(scores)
                for name, scores in self.test.items()
            }
        return {name: scores for name, scores in self.test.items() if scores["step"] == self.step}

    def objective(self, metric: str) -> float | None:
        """Return the value of an objective (`ObjectiveConfig.metric`), or None if it was not measured."""
        values = {
            "mean_at_k": self.mean_at_k,
            "pass_at_k": self.pass_at_k,
            "num_tokens": float(self.num_tokens),
            "entropy": self.metrics.get("objective/entropy"),
            "kl": self.metrics.get("objective/kl_k3"),
        }
        return values[metric]


def always_wrong(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `scores`, the test results on one benchmark, as if every answer were wrong."""
    return {
        **scores,
        "mean_at_k": 0.0,
        "pass_at_k": 0.0,
        "problem_means": [0.0] * len(scores["problem_means"]),
    }


def as_record(result: SeedResult) -> dict[str, Any]:
    """Return a result as JSON data. Metrics that are not finite are left out."""
    data = asdict(result)
    data["curve"] = [list(point) for point in result.curve]
    data["problem_means"] = list(result.problem_means)
    data["metrics"] = {name: value for name, value in result.metrics.items() if math.isfinite(value)}
    return data


def from_record(data: Mapping[str, Any]) -> SeedResult:
    """Return the result in a record that `as_record` created."""
    curve = tuple((int(step), float(mean), float(passed)) for step, mean, passed in data["curve"])
    return SeedResult(**{**data, "curve": curve, "problem_means": tuple(data["problem_means"])})


def objective_means(results: Sequence[SeedResult], metrics: Sequence[str]) -> list[Mean] | None:
    """Return the mean of each objective over seeds, or None if a value is unknown or not finite.

    The result is also None without seeds.
    """
    means = []
    for metric in metrics:
        values = [result.objective(metric) for result in results]
        if not values or any(value is None or not math.isfinite(value) for value in values):
            return None
        means.append(mean_over_seeds([value for value in values if value is not None]))
    return means
