"""A check, made before training, that the grader accepts each reference answer written in another form.

Results are cached in the subfolder `references/` of the cache folder. The cache key consists of the grader's
kind, version and settings, and the text of the reference. A check that times out is inconclusive and not
cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from atrium.assemble.graders import grader_version
from atrium.base.plain_files import MAX_LINES_BYTES, append_plain, read_plain
from atrium.base.records import Problem, Verdict, VerdictKind
from atrium.data.sources import Log
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import Verifier
from atrium.runs.listener import Listener

_MAX_WORKED = 500
_MIN_SHOWN = 20
"""Smallest number of checks in worker processes for which a progress bar is shown."""
_NO_FORM = ("num_workers", "timeout_s", "memory_limit_mb")
"""Settings of a grader that are not in the cache key, since they do not affect which answers are equal."""

_Checked = tuple[bool, str]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The arguments that all functions for loading problems need: the cache folder, a log, and a listener.

    `unreadable` contains the recorded results of the reference check in a resumed run: for each checked
    problem set, the ids of the problems with unreadable references. These sets are not checked again.
    """

    cache_dir: Path
    log: Log
    listener: Listener = field(default_factory=Listener)
    unreadable: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceCheck:
    """The result of a check of references.

    `unreadable` contains the problems with unreadable references, each with the reason. `unknown`
    contains the problems whose check timed out.
    """

    unreadable: tuple[tuple[Problem, str], ...]
    unknown: tuple[Problem, ...]


def check_references(
    problems: Sequence[Problem], verifier: Verifier, loading: Loading, name: str
) -> ReferenceCheck:
    """Check that the grader accepts each problem's reference, written in another form, as an answer.

    Of the references that need a worker process and are not cached, only the first 500 different ones are
    checked, so that a large training set does not delay the start of a run too long. The others count as
    readable.
    """
    cache = _Cache(verifier, loading.cache_dir)
    found: dict[str, _Checked | None] = {}
    keys = []
    with GraderPool(verifier) as pool:
        worked: dict[str, Future[Verdict]] = {}
        for problem in problems:
            own = verifier.of_problem(problem.judged_by)
            key = _key(problem, own, is_own=own is not verifier)
            keys.append(key)
            if key in found or key in worked:
                continue
            if key in cache.known:
                found[key] = cache.known[key]
                continue
            text = own.write(own.restate(problem.answer))
            verdict = pool.settle(text, problem.answer, problem.judged_by)
            if verdict is not None:
                found[key] = verdict.is_correct, verdict.reason
            elif len(worked) < _MAX_WORKED:
                worked[key] = pool.submit(text, problem.answer, problem.judged_by)
        found |= cache.kept(_results(worked, loading.listener, name))
    judged = [(problem, found.get(key, (True, ""))) for problem, key in zip(problems, keys, strict=True)]
    return ReferenceCheck(
        unreadable=tuple((problem, one[1]) for problem, one in judged if one is not None and not one[0]),
        unknown=tuple(problem for problem, one in judged if one is None),
    )


def _key(problem: Problem, own: Verifier, *, is_own: bool) -> str:
    """Return the cache key of a problem's reference: its text, preceded by a hash of `own` if `is_own`.

    `own` is the verifier of the problem. `is_own` is true if this verifier differs from that of the problem
    set.
    """
    if not is_own:
        return problem.answer
    settings = hashlib.sha256(own.model_dump_json().encode()).hexdigest()[:16]
    return f"{settings} {problem.answer}"


def _results(
    worked: dict[str, Future[Verdict]], listener: Listener, name: str
) -> Iterator[tuple[str, _Checked | None]]:
    """Yield each key of `worked` with the result of its check, or with None after a timeout.

    A result says whether the reference is readable and, if not, why. A progress bar is shown if there are at
    least `_MIN_SHOWN` results.
    """
    is_shown = len(worked) >= _MIN_SHOWN
    if is_shown:
        listener.phase(f"checking references of {name}", len(worked))
    for key, future in worked.items():
        verdict = future.result()
        is_unknown = verdict.kind is VerdictKind.TIMED_OUT
        yield key, None if is_unknown else (verdict.is_correct, verdict.reason)
        if is_shown:
            listener.advance(1)


class _Cache:
    """The cached results of reference checks by one grader.

    A grader from a plugin has no version, so its results are not cached.
    """

    def __init__(self, verifier: Verifier, cache_dir: Path) -> None:
        self.known: dict[str, _Checked] = {}
        self._path: Path | None = None
        if type(verifier).__module__.startswith("atrium."):
            settings = json.dumps(verifier.model_dump(mode="json", exclude=set(_NO_FORM)), sort_keys=True)
            digest = hashlib.sha256(f"{grader_version(verifier)}\n{settings}".encode()).hexdigest()[:16]
            self._path = cache_dir / "references" / f"{digest}.jsonl"
            self._read(self._path)

    def _read(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            for line in read_plain(path, MAX_LINES_BYTES).splitlines():
                with contextlib.suppress(ValueError, TypeError):  # a line cut off by a kill is ignored
                    key, is_readable, reason = json.loads(line)
                    self.known[str(key)] = bool(is_readable), str(reason)

    def kept(self, results: Iterator[tuple[str, _Checked | None]]) -> dict[str, _Checked | None]:
        """Write the results, except for timeouts, to the cache, and return all of them."""
        found = dict(results)
        lines = [json.dumps([key, *one]) for key, one in found.items() if one is not None]
        if lines and self._path is not None:
            with contextlib.suppress(OSError):  # without a cache, the check is only repeated
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with append_plain(self._path) as file:
                    file.write("".join(f"{line}\n" for line in lines).encode())
        return found
