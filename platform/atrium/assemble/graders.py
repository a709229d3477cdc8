"""The graders of a run: its own, and one for each other way in which a benchmark compares answers.

No torch, so that the first worker starts while it is being loaded.
"""

from __future__ import annotations

from importlib import metadata

import atrium
from atrium.assemble.benchmarks import LoadedBenchmark
from atrium.assemble.problem_sets import pool_settings
from atrium.config.models import ModelConfig
from atrium.config.problem_sets import ComparisonConfig
from atrium.config.tasks import GraderConfig
from atrium.grading.grader import Grader
from atrium.grading.pool import GraderPool


def build_grader(
    grader: GraderConfig, model: ModelConfig, comparison: ComparisonConfig | None = None
) -> GraderPool:
    """The pool of graders; its first worker starts at once, the others when texts need them.

    `comparison`, where given, replaces the grader's own way to compare.
    """
    pool = GraderPool(**pool_settings(grader, comparison), thinking=model.thinking)  # type: ignore[arg-type]
    pool.prepare()
    return pool


def grader_version(grader: GraderConfig) -> str:
    """What judged the answers: the kind of comparison, and the versions of the code behind it."""
    return f"{grader.kind}, atrium {atrium.__version__}, math-verify {metadata.version('math-verify')}"


class BenchmarkGraders:
    """The grader of each benchmark: the run's own, or one for each other way to compare."""

    def __init__(self, grader: GraderConfig, model: ModelConfig, own: Grader) -> None:
        self._grader = grader
        self._model = model
        self.own = own
        self._others: list[tuple[ComparisonConfig, Grader]] = []

    def of(self, benchmark: LoadedBenchmark) -> Grader:
        """The grader that compares as the benchmark asks."""
        comparison = benchmark.comparison
        if comparison is None or pool_settings(self._grader, comparison) == pool_settings(self._grader, None):
            return self.own
        for known, grader in self._others:
            if known == comparison:
                return grader
        grader = build_grader(self._grader, self._model, comparison)
        self._others.append((comparison, grader))
        return grader

    def close(self) -> None:
        """End the workers of all but the run's own grader."""
        for _, grader in self._others:
            grader.close()
