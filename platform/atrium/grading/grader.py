"""The grader protocol: takes a completion's text and a reference answer, returns a future verdict."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from atrium.base.records import Verdict

GRADER_VERSION = 3
"""Version of the verdicts: increased whenever an answer may get a different verdict than before."""

ENDLESS_THOUGHT = "the thinking never ended"
"""Reason of a verdict on a completion whose reasoning was never closed."""


class Grader(Protocol):
    """Grades texts against reference answers without ever blocking, crashing or hanging its caller."""

    def submit(self, text: str, gold: str, judged_by: Mapping[str, Any]) -> Future[Verdict]:
        """Start grading a text for a problem with this reference and these verifier values.

        The future always ends in a verdict within the grader's deadline, or in `GraderError` once the grader
        cannot grade anything any more: that is no answer's fault, and ends the run.
        """
        ...

    def compare(self, gold: str, answer: str) -> Future[Verdict]:
        """Start comparing an answer without its box with the reference answer, as `submit` does."""
        ...

    def close(self) -> None:
        """End all workers. Harmless when called twice."""
        ...
