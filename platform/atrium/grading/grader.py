"""The interface of graders, which compare completions with reference answers asynchronously."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from atrium.base.records import Verdict

GRADER_VERSION = 4
"""Version of the verdicts; it increases with every change that may alter the verdict on an answer."""

ENDLESS_THOUGHT = "the thinking never ended"
"""Reason in the verdict on a completion whose reasoning has no end marker."""


class Grader(Protocol):
    """A grader of completions that does not make its caller wait for slow comparisons."""

    def submit(self, text: str, gold: str, judged_by: Mapping[str, Any]) -> Future[Verdict]:
        """Start grading a completion's text against the reference answer `gold`.

        `judged_by` contains the problem's metadata and verifier values. The future yields a verdict; the time
        limit of a comparison starts when a worker receives it. The future raises `GraderError` if the grader
        has failed permanently, which ends the run. The call itself raises `DataError` for a value in
        `judged_by` that the verifier cannot use, and may also raise `GraderError`.
        """

    def compare(self, gold: str, answer: str) -> Future[Verdict]:
        """Start comparing an extracted answer with `gold`, and return a future as `submit` does."""

    def close(self) -> None:
        """Stop all workers. A second call has no effect."""
