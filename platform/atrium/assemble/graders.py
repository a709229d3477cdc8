"""The graders of a run: the run's own grader, and one for each different verifier of a benchmark.

This module does not import torch, so that the first worker starts while torch is being loaded.
"""

from __future__ import annotations

from importlib import metadata

from atrium.grading.grader import GRADER_VERSION, Grader
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import Verifier
from atrium.models.settings import ModelSettings


def build_grader(verifier: Verifier, model: ModelSettings) -> GraderPool:
    """Build the pool of grading workers.

    The first worker starts at once, the others when they are needed.
    """
    pool = GraderPool(verifier, thinking=model.thinking)
    pool.prepare()
    return pool


def grader_version(verifier: Verifier) -> str:
    """Return the version of a grader: the verifier's kind, and the versions of its rules and math-verify."""
    return f"{verifier.kind}, grader {GRADER_VERSION}, math-verify {metadata.version('math-verify')}"


class BenchmarkGraders:
    """The graders of all benchmarks: the run's own grader, and one for each different verifier."""

    def __init__(self, verifier: Verifier, model: ModelSettings, own: Grader) -> None:
        self._model = model
        self.own = own
        self._graders: list[tuple[Verifier, Grader]] = [(verifier, own)]

    def of(self, verifier: Verifier | None) -> Grader:
        """Return the grader for `verifier`, or the run's own grader for None.

        A grader is built when it is first needed.
        """
        if verifier is None:
            return self.own
        for known, grader in self._graders:
            if known == verifier:
                return grader
        grader = build_grader(verifier, self._model)
        self._graders.append((verifier, grader))
        return grader

    def close(self) -> None:
        """End the workers of all graders except the run's own."""
        for _, grader in self._graders[1:]:
            grader.close()
