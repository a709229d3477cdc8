"""What seeds and trials come to: records that travel through the storage, means and standard errors.

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
    """One run of a trial: where it lies and what came out.

    Shares lie in [0, 1]. `mean_at_k`, `pass_at_k` and `curve` (step, Mean@K, Pass@K) are measured on
    validation problems; `problem_means` holds their Mean@K problem by problem, in the benchmark's order.
    `test` is the last result on each other benchmark, with `problem_means` of its own and, where problems
    come in clusters, `clusters`, the number of each problem's. `metrics` are
    means over the last quarter of the steps. `collapse` says why the run counts as collapsed; it is empty
    where it does not, and None where nobody looked.
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
        """The test results where the run stopped: after its last step, or in the one where it diverged.

        A run that diverged has none only where its policy can answer nothing any more: it is always wrong.
        """
        if self.state == DIVERGED:
            return {
                name: scores if scores["step"] > self.step else always_wrong(scores)
                for name, scores in self.test.items()
            }
        return {name: scores for name, scores in self.test.items() if scores["step"] == self.step}

    def objective(self, metric: str) -> float | None:
        """The value of an objective, None where the run did not measure it."""
        values = {
            "mean_at_k": self.mean_at_k,
            "pass_at_k": self.pass_at_k,
            "num_tokens": float(self.num_tokens),
            "entropy": self.metrics.get("objective/entropy"),
            "kl": self.metrics.get("objective/kl_k3"),
        }
        return values[metric]


def always_wrong(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The test results of a policy that answers the same problems, and none of them right."""
    return {
        **scores,
        "mean_at_k": 0.0,
        "pass_at_k": 0.0,
        "problem_means": [0.0] * len(scores["problem_means"]),
    }


def as_record(result: SeedResult) -> dict[str, Any]:
    """A result as JSON holds it; numbers that are not finite are left out."""
    data = asdict(result)
    data["curve"] = [list(point) for point in result.curve]
    data["problem_means"] = list(result.problem_means)
    data["metrics"] = {name: value for name, value in result.metrics.items() if math.isfinite(value)}
    return data


def from_record(data: Mapping[str, Any]) -> SeedResult:
    """The result that `as_record` wrote."""
    curve = tuple((int(step), float(mean), float(passed)) for step, mean, passed in data["curve"])
    return SeedResult(**{**data, "curve": curve, "problem_means": tuple(data["problem_means"])})


def objective_means(results: Sequence[SeedResult], metrics: Sequence[str]) -> list[Mean] | None:
    """Each objective's mean over seeds; None where a seed did not measure one of them."""
    means = []
    for metric in metrics:
        values = [result.objective(metric) for result in results]
        if not values or any(value is None or not math.isfinite(value) for value in values):
            return None
        means.append(mean_over_seeds([value for value in values if value is not None]))
    return means
