"""The pool: verdicts always come, whatever happens to its processes, and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from atrium.base.errors import GraderError
from atrium.base.records import Verdict, VerdictKind
from atrium.grading.equivalence import Finding
from atrium.grading.pool import GraderPool
from atrium.grading.supervisor import Failure, Outcome, Reply, Supervisor
from atrium.grading.template import Template
from atrium.grading.verifiers import MathVerifier

ENDLESS = r"\boxed{\sin(9^{9^{9^{9}}})+x}"
SLOW_ENOUGH = r"\boxed{\log x + %d}"  # needs a worker, which takes some milliseconds
PLATFORM = Path(__file__).parents[2] / "platform"


PATIENCE_S = 100.0
"""What a busy machine may take for what should happen; nobody waits longer than it takes."""


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def graders_of(pid: int) -> list[int]:
    """The template and worker processes below a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in children if any("run_template" in a for a in child.cmdline())]
    return []


@pytest.fixture(scope="module")
def patient() -> Iterator[GraderPool]:
    """A pool that the tests of this file share; whatever they do to its processes, it must recover."""
    with GraderPool(MathVerifier(num_workers=1, timeout_s=30.0, memory_limit_mb=512)) as grader:
        yield grader


def the_worker(grader: GraderPool) -> int:
    grader.grade(rf"\boxed{{\log x + {next(fresh)}}}", "x")
    (pid,) = grader.worker_process_ids()
    return pid


fresh = itertools.count(1_000)  # numbers for questions that were not asked before


def test_what_is_settled_at_once_starts_no_process():
    threads, processes = threading.active_count(), graders_of(os.getpid())  # other tests' pools
    with GraderPool(MathVerifier(num_workers=2, timeout_s=5.0, memory_limit_mb=1024)) as grader:
        futures = [
            grader.submit(r"\boxed{42}", "42"),
            grader.submit(r"\boxed{43}", "42"),
            grader.submit("no box", "42"),
            grader.submit(r"\boxed{\frac{1}{2}}", "0.5"),
        ]
        assert all(future.done() for future in futures)
        assert [future.result().kind.value for future in futures] == [
            "correct",
            "incorrect",
            "no_answer",
            "correct",
        ]
        assert graders_of(os.getpid()) == processes
        assert threading.active_count() == threads


@pytest.mark.full
@pytest.mark.parametrize("thinking", [False, True])
def test_an_extracted_answer_is_compared_as_it_is(thinking: bool):
    with GraderPool(
        MathVerifier(num_workers=1, timeout_s=60.0, memory_limit_mb=1024), thinking=thinking
    ) as pool:
        equal = pool.compare(r"\frac{1}{2}", "0.5").result()
        assert (equal.kind, equal.extracted) == (VerdictKind.CORRECT, "0.5")
        assert pool.compare("x+1", "1+x").result().is_correct, "by a worker"
        assert not pool.compare("3", "4").result().is_correct


def test_verdicts_name_the_answer_and_a_reason():
    with GraderPool(
        MathVerifier(num_workers=1, timeout_s=5.0, memory_limit_mb=1024), thinking=True
    ) as grader:
        verdict = grader.grade(r"<think>hm</think> \boxed{43}", "42")
        assert (verdict.kind, verdict.extracted) == (VerdictKind.INCORRECT, "43")
        assert verdict.reason
        unfinished = grader.grade(r"\boxed{42}", "42")
        assert unfinished.kind is VerdictKind.NO_ANSWER
        assert "thinking" in unfinished.reason
        assert "no answer" in grader.grade("</think> 42", "42").reason


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.5, 1.5])
def test_a_score_that_is_no_share_is_a_crashed_grade_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, score: float
):
    monkeypatch.setattr(MathVerifier, "settle", lambda *_: Finding(False, "scored", score))
    with GraderPool(MathVerifier()) as pool:
        verdict = pool.submit(r"\boxed{1}", "2").result()
    assert verdict.kind is VerdictKind.CRASHED
    assert f"between 0 and 1, got {score}" in verdict.reason


def test_a_prepared_pool_has_a_worker_before_anything_is_graded():
    with GraderPool(MathVerifier(num_workers=2, timeout_s=5.0, memory_limit_mb=512)) as grader:
        grader.prepare()
        assert eventually(lambda: len(grader.worker_process_ids()) == 1)
        (prepared,) = grader.worker_process_ids()
        assert not grader.grade(SLOW_ENOUGH % 1, "x").is_correct
        assert prepared in grader.worker_process_ids()
    assert eventually(lambda: not is_alive(prepared))


@pytest.mark.full
def test_an_endless_comparison_ends_at_the_deadline_and_the_pool_goes_on():
    with GraderPool(MathVerifier(num_workers=1, timeout_s=2.0, memory_limit_mb=512)) as grader:
        assert not grader.grade(SLOW_ENOUGH % 1, "x").is_correct
        (first,) = grader.worker_process_ids()
        start = time.monotonic()
        verdict = grader.grade(ENDLESS, "x+1")
        assert time.monotonic() - start > 1.9
        assert verdict.kind is VerdictKind.TIMED_OUT
        assert "2 s" in verdict.reason
        assert grader.grade(r"\boxed{x\log x+x}", r"x(1+\log x)").is_correct
        assert first not in grader.worker_process_ids()
        assert eventually(lambda: not is_alive(first))


@pytest.mark.full
def test_a_job_whose_processes_are_all_killed_in_the_middle_is_done_by_others():
    with GraderPool(MathVerifier(num_workers=1, timeout_s=5.0, memory_limit_mb=512)) as grader:
        others = set(graders_of(os.getpid()))
        worker = the_worker(grader)
        doomed = grader.submit(ENDLESS, "x+2")
        assert eventually(lambda: psutil.Process(worker).cpu_percent(0.1) > 0)
        pids = set(graders_of(os.getpid())) - others
        assert worker in pids
        assert len(pids) >= 2
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert doomed.result(timeout=PATIENCE_S).kind is VerdictKind.TIMED_OUT  # as without the kills
        assert grader.grade(r"\boxed{x\log x+99x}", r"x(99+\log x)").is_correct


@pytest.mark.full
def test_a_job_at_which_two_workers_are_killed_fails_alone(patient: GraderPool):
    the_worker(patient)
    doomed = patient.submit(ENDLESS, "x+1")
    waiting = patient.submit(r"\boxed{x\log x+x}", r"x(1+\log x)")
    while not doomed.done():
        time.sleep(0.1)
        for pid in patient.worker_process_ids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    verdict = doomed.result()
    assert verdict.kind is VerdictKind.CRASHED
    assert "died" in verdict.reason
    assert waiting.result(timeout=PATIENCE_S).is_correct


@pytest.mark.full
def test_an_idle_worker_that_was_killed_is_replaced_unnoticed(patient: GraderPool):
    for number in range(8):
        os.kill(the_worker(patient), signal.SIGKILL)
        answer = rf"\boxed{{x\log x+{number}x}}"
        assert patient.grade(answer, rf"x({number}+\log x)").is_correct


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads what only Linux tells of a process")
def test_asking_a_template_that_was_killed_for_a_worker_leaves_no_socket_open():
    template = Template(memory_limit_mb=512, timeout_s=5.0)
    try:
        template.process.kill()
        template.process.wait()
        num_open = psutil.Process().num_fds()
        with pytest.raises(OSError):
            template.fork()
        assert psutil.Process().num_fds() == num_open
    finally:
        template.end(at_once=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what only Linux tells of a process")
def test_workers_have_a_memory_limit_and_no_torch(patient: GraderPool):
    pid = the_worker(patient)
    assert resource.prlimit(pid, resource.RLIMIT_AS) == (512 * 2**20,) * 2
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.full
def test_an_answer_that_wants_all_memory_gets_no_more_than_its_share():
    with GraderPool(MathVerifier(num_workers=1, timeout_s=20.0, memory_limit_mb=300)) as grader:
        hungry = grader.submit(r"\boxed{2^{2^{34}}+\log x}", r"\frac{x+\log x}{2}")
        while not hungry.done():
            for pid in grader.worker_process_ids():
                with contextlib.suppress(psutil.NoSuchProcess):
                    assert psutil.Process(pid).memory_info().rss < 310 * 2**20
            time.sleep(0.02)
        assert not hungry.result().is_correct


def test_verdicts_do_not_depend_on_the_order_of_submission(patient: GraderPool):
    answers = {a: rf"\boxed{{x\log x + {a}x}}" for a in range(4)}
    golds = {b: rf"x({b}+\log x)" for b in range(4)}
    pairs = [(a, b) for a in answers for b in golds]
    random.Random(0).shuffle(pairs)
    futures = {(a, b): patient.submit(answers[a], golds[b]) for a, b in pairs}
    assert {pair: future.result().is_correct for pair, future in futures.items()} == {
        (a, b): a == b for a, b in pairs
    }


def test_equal_questions_are_asked_once(patient: GraderPool):
    futures = [patient.submit(r"\boxed{y\log y+y}", r"y(1+\log y)") for _ in range(200)]
    assert all(future.result().is_correct for future in futures)
    assert patient.submit(r"\boxed{y\log y+y}", r"y(1+\log y)").done()


def test_a_cancelled_future_and_a_callback_that_submits_do_no_harm(patient: GraderPool):
    the_worker(patient)
    patient.submit(SLOW_ENOUGH % 2, "y").cancel()
    chained: list[Future[Verdict]] = []
    first = patient.submit(SLOW_ENOUGH % 3, "y")
    first.add_done_callback(lambda _: chained.append(patient.submit(SLOW_ENOUGH % 4, "y")))
    assert not first.result(timeout=PATIENCE_S).is_correct
    assert eventually(lambda: len(chained) == 1)
    assert chained[0].result(timeout=PATIENCE_S).kind is VerdictKind.INCORRECT


def test_closing_ends_jobs_in_flight_with_a_verdict():
    others = set(graders_of(os.getpid()))
    grader = GraderPool(MathVerifier(num_workers=2, timeout_s=60.0, memory_limit_mb=512))
    grader.grade(SLOW_ENOUGH % 1, "x")
    futures = [grader.submit(rf"\boxed{{\sin(9^{{9^{{9^{{{n}}}}}}})+x}}", "x") for n in range(8, 14)]
    pids = set(graders_of(os.getpid())) - others
    grader.close()
    grader.close()
    # Had it waited for the jobs, they would have timed out.
    assert {future.result(timeout=0).kind for future in futures} == {VerdictKind.CRASHED}
    assert "closed" in futures[-1].result().reason
    assert pids
    assert not any(map(is_alive, pids))
    late = grader.submit(SLOW_ENOUGH % 2, "x").result(timeout=PATIENCE_S)
    assert late.kind is VerdictKind.CRASHED


def test_closing_while_the_processes_start_leaves_none():
    others = set(graders_of(os.getpid()))
    grader = GraderPool(MathVerifier(num_workers=2, timeout_s=60.0, memory_limit_mb=512))
    future = grader.submit(SLOW_ENOUGH % 1, "x")
    grader.close()
    assert future.result(timeout=0).kind is VerdictKind.CRASHED
    assert eventually(lambda: set(graders_of(os.getpid())) <= others)


@pytest.mark.full
def test_no_job_is_lost_or_done_twice_while_workers_are_killed_at_random():
    outcomes: list[list[Outcome]] = [[] for _ in range(60)]
    supervisor = Supervisor(num_workers=2, timeout_s=20.0, memory_limit_mb=512)
    origin = {"module": "atrium.grading.verifiers", "name": "MathVerifier", "file": None, "settings": {}}
    for number, received in enumerate(outcomes):
        job = {"verifier": origin, "gold": "x", "answer": rf"\log x + {number}"}
        supervisor.submit(json.dumps(job).encode() + b"\n", received.append)
    rng = random.Random(0)
    while not all(outcomes):
        for pid in supervisor.process_ids():
            if rng.random() < 0.03:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    supervisor.close()
    assert {len(received) for received in outcomes} == {1}
    kinds = {type(received[0]) for received in outcomes}
    assert Reply in kinds
    assert all(isinstance(r[0], Reply) or not r[0].is_timeout for r in outcomes)
    assert kinds <= {Reply, Failure}


SCRIPT = textwrap.dedent(
    r"""
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from atrium.grading.pool import GraderPool
    from atrium.grading.verifiers import MathVerifier
    assert "torch" not in sys.modules and "sympy" not in sys.modules
    if __name__ == "__main__":
        with GraderPool(MathVerifier(num_workers=2, timeout_s=60.0, memory_limit_mb=512)) as grader:
            grader.grade(r"\boxed{\log x}", "x")
            futures = [grader.submit(r"\boxed{\sin(9^{9^{9^{%d}}})+x}" % n, "x") for n in (8, 9)]
            while len(grader.worker_process_ids()) < 2:
                time.sleep(0.01)
            print("busy", flush=True)
            futures[0].result()
    """
)


@pytest.mark.parametrize(
    "ending", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_when_the_caller_dies_no_process_stays_behind(ending: signal.Signals):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(PLATFORM)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"busy\n"
        pids = graders_of(caller.pid)
        assert len(pids) == 3
        if ending is signal.SIGINT:
            os.killpg(caller.pid, ending)  # what a terminal does on Ctrl-C
        else:
            caller.send_signal(ending)
        caller.wait(timeout=PATIENCE_S)
    assert eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"num_workers": 0}, "num_workers"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"memory_limit_mb": 100}, "memory_limit_mb"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, object], key: str):
    right = {"num_workers": 1, "timeout_s": 5.0, "memory_limit_mb": 512}
    with pytest.raises(ValidationError, match=key):
        MathVerifier(**{**right, **settings})  # type: ignore[arg-type]


def test_a_supervisor_that_ends_by_itself_is_an_error_and_no_wrong_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Supervisor, "_outcome", lambda *_: 1 / 0)
    with GraderPool(MathVerifier(num_workers=2, timeout_s=5.0, memory_limit_mb=512)) as grader:
        # Two jobs that may meet the defect at once, and one that comes later.
        futures = [grader.submit(SLOW_ENOUGH % number, "x") for number in (1, 2)]
        for future in (*futures, grader.submit(SLOW_ENOUGH % 3, "x")):
            with pytest.raises(GraderError, match="cannot continue: ZeroDivisionError"):
                future.result(timeout=PATIENCE_S)
        assert grader.grade(r"\boxed{1}", "1").is_correct


OWN = """
import numpy as np
from atrium.grading.equivalence import Finding
from atrium.grading.verifiers import PlacedVerifier, Verifier

class Own(Verifier):
    kind: str = "own"

    def extract(self, text):
        if text == "key":
            raise KeyError("boom")
        return 5 if text == "number" else text

    def compare(self, gold, answer):
        return answer == gold if gold == "bare" else Finding(np.bool_(answer == gold), "", np.float32(1))

    def write(self, answer):
        return answer

class OwnPlaced(PlacedVerifier):
    kind: str = "own"
    extract, compare, write = Own.extract, Own.compare, Own.write
"""


@pytest.fixture(params=["Own", "OwnPlaced"], scope="module")
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraderPool]:
    """A pool with a verifier of a user's, which extracts in a worker or in this process."""
    path = tmp_path_factory.mktemp("own") / "own_verifiers.py"
    path.write_text(OWN)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with GraderPool(getattr(module, request.param)(num_workers=1, timeout_s=30.0)) as pool:
        yield pool
    del sys.modules[path.stem]


def test_an_extracted_answer_that_is_no_text_is_an_error_that_names_the_verifier(own: GraderPool):
    name = type(own.verifier).__name__
    with pytest.raises(GraderError, match=rf"{name}\.extract must return text or None, got 5"):
        own.submit("number", "5").result(timeout=PATIENCE_S)


def test_an_error_in_extraction_is_a_crashed_grade_that_names_its_place(own: GraderPool):
    verdict = own.submit("key", "5").result(timeout=PATIENCE_S)
    assert verdict.kind is VerdictKind.CRASHED
    assert re.search(r"own_verifiers.py, line \d+, in extract: KeyError: 'boom'", verdict.reason)


def test_a_comparison_that_returns_no_finding_is_a_crashed_grade_that_says_so(own: GraderPool):
    verdict = own.submit("bare", "bare").result(timeout=PATIENCE_S)
    assert verdict.kind is VerdictKind.CRASHED
    assert "compare must return a Finding, got True" in verdict.reason


def test_a_finding_may_hold_values_of_numpy(own: GraderPool):
    verdict = own.submit("5", "5").result(timeout=PATIENCE_S)
    assert (verdict.kind, verdict.score) == (VerdictKind.CORRECT, 1.0)


def test_a_reply_that_cannot_be_read_is_an_error_and_no_endless_wait(monkeypatch: pytest.MonkeyPatch):
    reply = Reply({"is_equal": True})
    monkeypatch.setattr(Supervisor, "_outcome", lambda *_: reply)
    with GraderPool(MathVerifier()) as grader, pytest.raises(GraderError, match="KeyError"):
        grader.submit(SLOW_ENOUGH % 1, "x").result(timeout=PATIENCE_S)


def test_after_closing_any_number_of_jobs_is_refused_without_blocking(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("atrium.grading.supervisor.MAX_PENDING", 2)
    supervisor = Supervisor(num_workers=1, timeout_s=5.0, memory_limit_mb=512)
    supervisor.close()
    outcomes: list[Outcome] = []
    jobs = threading.Thread(
        target=lambda: [supervisor.submit(b"", outcomes.append) for _ in range(4)], daemon=True
    )
    jobs.start()
    jobs.join(timeout=10.0)
    assert outcomes == [Failure(False, "the grader was closed")] * 4


def test_processes_that_cannot_start_are_an_error_and_no_wrong_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("atrium.grading.template._BOOT", "raise SystemExit(1)")
    with (
        GraderPool(MathVerifier(num_workers=1, timeout_s=5.0, memory_limit_mb=512)) as grader,
        pytest.raises(GraderError, match="could not start"),
    ):
        grader.submit(SLOW_ENOUGH % 1, "x").result(timeout=PATIENCE_S)
