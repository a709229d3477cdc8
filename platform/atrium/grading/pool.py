"""The grader of training and evaluation: a pool of workers that returns futures of verdicts.

Cheap comparisons run in the calling process, and their futures are done when `submit` returns. All other
comparisons are sent to a worker process. A verdict does not depend on whether the completion was truncated;
the reward decides whether a truncated completion counts. `supervisor` manages the processes.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from atrium.base import plugins
from atrium.base.errors import ConfigError, GraderError
from atrium.base.records import Verdict, VerdictKind
from atrium.grading.equivalence import Finding
from atrium.grading.extraction import answer_text
from atrium.grading.grader import ENDLESS_THOUGHT
from atrium.grading.normalization import MAX_ANSWER_CHARS
from atrium.grading.supervisor import Defect, Failure, Outcome, Reply, Supervisor
from atrium.grading.verifiers import PlacedVerifier, Verifier, extracted, place_of

_MAX_KNOWN = 16_384

_UNFINISHED = Verdict(kind=VerdictKind.NO_ANSWER, reason=ENDLESS_THOUGHT)
_NO_ANSWER = Verdict(kind=VerdictKind.NO_ANSWER, reason="no answer was found")

_Key = tuple[str, str, str]


class GraderPool:
    """A grader that compares completions with reference answers in worker processes that can be killed.

    Parameters
    ----------
    verifier
        The settings of grading: how answers are found and compared, the maximum number of worker
        processes, and the limits of a worker. A comparison that takes longer than `timeout_s` gets the
        verdict `timed_out`, and one that needs more than `memory_limit_mb` gets `crashed`. Workers start
        with the first jobs, or with `prepare`. The verifier's class must not be declared in `__main__`.
    thinking
        Whether the model reasons before it answers; a completion without `</think>` then has no answer.

    The pool may be used from several threads. It caches the 16,384 most recently used results of workers,
    except timeouts, crashes, and results of verifiers that extract the answer in a worker.
    """

    def __init__(self, verifier: Verifier, thinking: bool = False) -> None:
        self._thinking = thinking
        self.verifier = verifier
        # Tested once, since the test takes about a microsecond.
        self._placed = verifier if isinstance(verifier, PlacedVerifier) else None
        self._origin = _origin(verifier)
        self._lock = threading.Lock()
        self._known: OrderedDict[_Key, Finding] = OrderedDict()
        self._waiting: dict[_Key, list[Future[Verdict]]] = {}
        self._supervisor = Supervisor(
            num_workers=verifier.num_workers,
            timeout_s=verifier.timeout_s,
            memory_limit_mb=verifier.memory_limit_mb,
            modules=verifier.modules,
        )

    def submit(
        self, text: str, gold: str, judged_by: Mapping[str, Any] = MappingProxyType({})
    ) -> Future[Verdict]:
        """Start grading a completion. The future yields a verdict, or raises `GraderError` if grading fails.

        `judged_by` contains the metadata and the verifier values of the problem. Raises `DataError` for a
        value that the verifier cannot use, and `GraderError` if a `PlacedVerifier` extracts something other
        than text. Blocks only while 10,000 jobs are queued for the workers. After `close`, answers that need
        a worker get the verdict `crashed`.
        """
        visible = answer_text(text, thinking=self._thinking)
        if visible is None:
            return _done(_UNFINISHED)
        verifier = self.verifier.of_problem(judged_by)
        if self._placed is not None:
            answer = _found(self._placed, visible)
            return _done(answer) if isinstance(answer, Verdict) else self._compare(verifier, gold, answer)
        future: Future[Verdict] = Future()
        job = {"text": visible, "gold": gold}
        self._send(verifier, job, lambda outcome: _end([future], outcome, None))
        return future

    def compare(self, gold: str, answer: str) -> Future[Verdict]:
        """Start comparing an extracted answer with the reference answer; see `submit` for the future."""
        return self._compare(self.verifier, gold, answer)

    def _compare(self, verifier: Verifier, gold: str, answer: str) -> Future[Verdict]:
        verdict = _settled(verifier, gold, answer)
        return self._ask(verifier, gold, answer) if verdict is None else _done(verdict)

    def settle(
        self, text: str, gold: str, judged_by: Mapping[str, Any] = MappingProxyType({})
    ) -> Verdict | None:
        """Return the verdict on a completion, or None if only a worker process can decide.

        Raises the errors that `submit` raises.
        """
        visible = answer_text(text, thinking=self._thinking)
        if visible is None:
            return _UNFINISHED
        if self._placed is None:
            return None
        answer = _found(self._placed, visible)
        if isinstance(answer, Verdict):
            return answer
        return _settled(self.verifier.of_problem(judged_by), gold, answer)

    def grade(self, text: str, gold: str) -> Verdict:
        """Grade the completion `text` against the reference answer `gold`, and wait for the verdict."""
        return self.submit(text, gold).result()

    def prepare(self) -> None:
        """Start a worker in the background, so that the first job does not wait for its start."""
        self._supervisor.prepare()

    def worker_process_ids(self) -> list[int]:
        """Return the process ids of the workers that are ready, or an empty list if none is ready yet."""
        return self._supervisor.process_ids()

    def close(self) -> None:
        """Stop all workers. Pending answers get the verdict `crashed`."""
        self._supervisor.close()

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, verifier: Verifier, gold: str, answer: str) -> Future[Verdict]:
        """Send an answer and its reference to a worker, unless the result is cached or pending."""
        settings = "" if verifier is self.verifier else verifier.model_dump_json()
        key, future = (settings, gold, answer), Future[Verdict]()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return _done(_verdict(self._known[key], answer))
            self._waiting.setdefault(key, []).append(future)
            if len(self._waiting[key]) > 1:
                return future
        self._send(verifier, {"gold": gold, "answer": answer}, lambda outcome: self._finish(key, outcome))
        return future

    def _send(self, verifier: Verifier, job: dict[str, str], on_done: Callable[[Outcome], None]) -> None:
        origin = self._origin if verifier is self.verifier else _origin(verifier)
        line = json.dumps({"verifier": origin, **job}).encode() + b"\n"
        self._supervisor.submit(line, on_done)

    def _finish(self, key: _Key, outcome: Outcome) -> None:
        with self._lock:
            futures = self._waiting.pop(key)
            if isinstance(outcome, Reply) and outcome.message.keys() >= {"is_equal", "reason", "score"}:
                self._known[key] = _finding(outcome.message)
                if len(self._known) > _MAX_KNOWN:
                    self._known.popitem(last=False)
        _end(futures, outcome, key[-1])


def _done(verdict: Verdict) -> Future[Verdict]:
    future: Future[Verdict] = Future()
    future.set_result(verdict)
    return future


def _origin(verifier: Verifier) -> dict[str, object]:
    """Return the verifier's settings and the location of its class, from which a worker can load it.

    Raises `ConfigError` if the class is declared in `__main__`.
    """
    kind = type(verifier)
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    if kind.__module__ == "__main__":
        raise ConfigError(
            f"the grader {kind.__name__} must not be declared in the main program, which workers cannot "
            "import; move it to a module"
        )
    return {
        "module": kind.__module__,
        "name": kind.__name__,
        "file": file,
        "sha256": next((one.sha256 for one in plugins.loaded() if one.path and str(one.path) == file), None),
        "settings": verifier.model_dump(mode="json"),
    }


def _found(verifier: Verifier, text: str) -> str | Verdict:
    """Return the answer in a text, or a verdict if the text has no answer or the extraction fails."""
    try:
        answer = extracted(verifier, text)
    except GraderError:
        raise
    except Exception as error:  # as in a worker, it counts as a crash
        return _crashed(f"the comparison failed: {place_of(error, verifier)}", None)
    return _NO_ANSWER if answer is None else answer


def _settled(verifier: Verifier, gold: str, answer: str) -> Verdict | None:
    """Return the verdict of a comparison in this process, or None if a worker is needed."""
    if not isinstance(verifier, PlacedVerifier):
        return None
    try:
        finding = verifier.settle(gold, answer)
        return None if finding is None else _verdict(finding, answer)
    except Exception as error:
        # A bug triggered by one answer in millions must not end the run; the verdict counts as a crash.
        return _crashed(f"the comparison failed: {place_of(error, verifier)}", answer)


def _end(futures: Iterable[Future[Verdict]], outcome: Outcome, answer: str | None) -> None:
    try:
        result = _result(outcome, answer)
    except Exception as error:  # without it, the caller would wait forever
        result = GraderError(f"the grader cannot continue: {type(error).__name__}: {error}")
    for future in futures:
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(result, Verdict):
            future.set_result(result)
        else:
            future.set_exception(result)


def _result(outcome: Outcome, answer: str | None) -> Verdict | GraderError:
    if isinstance(outcome, Reply) and "defect" in outcome.message:
        outcome = Defect(outcome.message["defect"])
    if isinstance(outcome, Defect):
        return GraderError(f"the grader cannot continue: {outcome.reason}")
    if isinstance(outcome, Failure):
        kind = VerdictKind.TIMED_OUT if outcome.is_timeout else VerdictKind.CRASHED
        return Verdict(kind=kind, reason=outcome.reason, extracted=_shortened(answer))
    if "is_equal" not in outcome.message:
        return _NO_ANSWER
    return _verdict(_finding(outcome.message), outcome.message["extracted"])


def _finding(message: Mapping[str, Any]) -> Finding:
    return Finding(message["is_equal"], message["reason"], message["score"])


def _verdict(finding: Finding, answer: str) -> Verdict:
    if finding.score is not None and not 0.0 <= finding.score <= 1.0:
        return _crashed(f"the score must be between 0 and 1, got {finding.score}", answer)
    kind = VerdictKind.CORRECT if finding.is_equal else VerdictKind.INCORRECT
    return Verdict(kind=kind, reason=finding.reason, extracted=_shortened(answer), score=finding.score)


def _crashed(reason: str, answer: str | None) -> Verdict:
    return Verdict(kind=VerdictKind.CRASHED, reason=reason, extracted=_shortened(answer))


def _shortened(answer: str | None) -> str | None:
    # The run's record keeps all verdicts; of an answer with a million digits, the beginning is enough.
    return None if answer is None else answer[:MAX_ANSWER_CHARS]
