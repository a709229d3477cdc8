r"""The grader of the training loop and of evaluation: completions in, futures of verdicts out.

What can be settled at once is settled in the caller, and the future is done when `submit` returns; only
what needs math-verify goes to a worker process. A verdict looks at the answer alone: whether a truncated
completion may count is the reward's decision. No processes are handled here, see `supervisor`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from types import TracebackType

from atrium.errors import ConfigError
from atrium.grading.comparisons import COMPARISONS
from atrium.grading.equivalence import Finding
from atrium.grading.extraction import answer_text, extract_answer
from atrium.grading.normalization import MAX_ANSWER_CHARS
from atrium.grading.supervisor import Failure, Outcome, Supervisor
from atrium.records import Verdict, VerdictKind

MIN_MEMORY_LIMIT_MB = 256
"""A worker that has loaded math-verify takes about 100 MB of address space."""

_MAX_KNOWN = 16_384

_Key = tuple[str, str]


class GraderPool:
    r"""Grades completions against gold answers in killable worker processes.

    Parameters
    ----------
    num_workers
        The most worker processes at a time, at least 1. Jobs start them, and `prepare` the first.
    timeout_s
        Seconds that a worker may take for one answer; then it is killed and the verdict is `timed_out`.
    memory_limit_mb
        Address space of one worker, at least 256; beyond it the verdict is `crashed`.
    thinking
        Whether the model was asked to think: then a completion without `</think>` has no answer.
    kind
        How answers are compared, a key of `COMPARISONS`: math, exact, numeric, multiple_choice.
    relative_tolerance
        For `numeric`: the largest difference, relative to the larger number, in [0, 1).

    Safe to call from several threads. A pair of gold answer and answer that was settled by a worker is not
    asked again while it is among the last 16,384; timeouts and crashes are.

    Raises
    ------
    ConfigError
        When a setting is out of its range.
    """

    def __init__(
        self,
        num_workers: int,
        timeout_s: float,
        memory_limit_mb: int,
        thinking: bool = False,
        *,
        kind: str = "math",
        relative_tolerance: float = 1e-6,
    ) -> None:
        if num_workers < 1:
            raise ConfigError(f"grader.num_workers is {num_workers}, must be at least 1")
        if not timeout_s > 0:
            raise ConfigError(f"grader.timeout_s is {timeout_s}, must be greater than 0")
        if memory_limit_mb < MIN_MEMORY_LIMIT_MB:
            raise ConfigError(
                f"grader.memory_limit_mb is {memory_limit_mb}, must be at least {MIN_MEMORY_LIMIT_MB}"
            )
        if kind not in COMPARISONS:
            raise ConfigError(f"grader.kind is {kind!r}, must be one of {', '.join(COMPARISONS)}")
        if not 0 <= relative_tolerance < 1:
            raise ConfigError(f"grader.relative_tolerance is {relative_tolerance}, must be in [0, 1)")
        self._thinking = thinking
        self._kind = kind
        self._relative_tolerance = relative_tolerance
        self._lock = threading.Lock()
        self._known: OrderedDict[_Key, Finding] = OrderedDict()
        self._waiting: dict[_Key, list[Future[Verdict]]] = {}
        self._supervisor = Supervisor(
            num_workers=num_workers, timeout_s=timeout_s, memory_limit_mb=memory_limit_mb
        )

    def submit(self, text: str, gold: str) -> Future[Verdict]:
        """Start grading a completion; the future always ends in a verdict, and never in an error.

        Waits only while 10,000 jobs are queued for the workers. After `close` what needs a worker ends in
        the verdict `crashed`.
        """
        answer = extract_answer(text, thinking=self._thinking)
        if answer is not None:
            return self.compare(gold, answer)
        future: Future[Verdict] = Future()
        future.set_result(self._no_answer(text))
        return future

    def compare(self, gold: str, answer: str) -> Future[Verdict]:
        """Start comparing an answer without its box with the gold answer; as `submit` in all else."""
        future: Future[Verdict] = Future()
        try:
            finding = COMPARISONS[self._kind](gold, answer, self._relative_tolerance)
        except Exception as error:
            # A defect that one answer in millions brings to light must not end the run; it is counted.
            reason = f"the comparison failed: {type(error).__name__}"
            future.set_result(_crashed(reason, answer))
            return future
        if finding is None:
            finding = self._ask(future, gold, answer)
        if finding is not None:
            future.set_result(_verdict(finding, answer))
        return future

    def grade(self, text: str, gold: str) -> Verdict:
        """Grade one completion and wait for the verdict."""
        return self.submit(text, gold).result()

    def prepare(self) -> None:
        """Start a worker beside what the caller does, so that the first text that needs one need not wait."""
        self._supervisor.prepare()

    def worker_process_ids(self) -> list[int]:
        """The process ids of the workers that are ready now; empty while nothing needed one."""
        return self._supervisor.process_ids()

    def close(self) -> None:
        """End all workers; what is not graded by then ends in the verdict `crashed`."""
        self._supervisor.close()

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _no_answer(self, text: str) -> Verdict:
        unfinished = answer_text(text, thinking=self._thinking) is None
        reason = "the thinking never ended" if unfinished else "no boxed answer"
        return Verdict(kind=VerdictKind.NO_ANSWER, reason=reason)

    def _ask(self, future: Future[Verdict], gold: str, answer: str) -> Finding | None:
        """Give the pair to a worker, unless it is known (then return it) or on its way."""
        key = (gold, answer)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            if key in self._waiting:
                self._waiting[key].append(future)
                return None
            self._waiting[key] = [future]
        job = {
            "kind": self._kind,
            "gold": gold,
            "answer": answer,
            "relative_tolerance": self._relative_tolerance,
        }
        line = json.dumps(job).encode() + b"\n"
        self._supervisor.submit(line, lambda outcome: self._finish(key, outcome))
        return None

    def _finish(self, key: _Key, outcome: Outcome) -> None:
        finding: Finding | None = None
        if not isinstance(outcome, Failure) and "is_equal" in outcome.message:
            finding = Finding(outcome.message["is_equal"], outcome.message["reason"])
        with self._lock:
            futures = self._waiting.pop(key)
            if finding is not None:
                self._known[key] = finding
                if len(self._known) > _MAX_KNOWN:
                    self._known.popitem(last=False)
        verdict = _verdict(finding, key[1]) if finding else _failed_verdict(outcome, key[1])
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_result(verdict)


def _verdict(finding: Finding, answer: str) -> Verdict:
    kind = VerdictKind.CORRECT if finding.is_equal else VerdictKind.INCORRECT
    # Records keep verdicts for as long as the run: the beginning of a megabyte of digits is enough.
    return Verdict(kind=kind, reason=finding.reason, extracted=answer[:MAX_ANSWER_CHARS])


def _failed_verdict(outcome: Outcome, answer: str) -> Verdict:
    if isinstance(outcome, Failure) and outcome.is_timeout:
        return Verdict(kind=VerdictKind.TIMED_OUT, reason=outcome.reason, extracted=answer)
    if isinstance(outcome, Failure):
        return _crashed(outcome.reason, answer)
    return _crashed(f"the comparison failed: {outcome.message['failure']}", answer)


def _crashed(reason: str, answer: str) -> Verdict:
    return Verdict(kind=VerdictKind.CRASHED, reason=reason, extracted=answer[:MAX_ANSWER_CHARS])
