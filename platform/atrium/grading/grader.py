"""The grader protocol: a completion's text and a gold answer in, a verdict out, later and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from atrium.base.records import Verdict

GRADER_VERSION = 3
"""Counts the changes of verdicts: raised whenever an answer may get another verdict than before."""

ENDLESS_THOUGHT = "the thinking never ended"
"""The reason of a verdict on a completion whose reasoning was never closed."""


class Grader(Protocol):
    """Grades texts against gold answers without ever blocking, crashing or hanging its caller."""

    def submit(self, text: str, gold: str, judged_by: Mapping[str, Any]) -> Future[Verdict]:
        """Start grading the text for a problem with this reference and these values for the verifier.

        The future always ends in a verdict within the grader's deadline, or in `GraderError` once the
        grader can grade nothing any more: that is no answer's fault, and ends the run.
        """
        ...

    def compare(self, gold: str, answer: str) -> Future[Verdict]:
        """As `submit`, for an answer without its box: whether it equals the gold answer."""
        ...

    def close(self) -> None:
        """End all workers. Harmless when called twice."""
        ...
