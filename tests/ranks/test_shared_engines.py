"""Ranks that share an engine: each prompt is answered by one engine, graded once, and then known to all.

Ranks are threads here, which exchange real records through one table.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from tests.opened_run import opened_run

from atrium.assemble.evaluation_plan import EvaluationPlan, JudgedBenchmark
from atrium.assemble.ranks import explained_by
from atrium.base.errors import EngineError, RankError
from atrium.base.metrics import RANK_TOKENS_MAX, RANK_TOKENS_MIN
from atrium.base.records import Completion, FinishReason, Problem
from atrium.data.problems import ProblemStream
from atrium.engines.engine import EngineFacts, Generation, SamplingParams
from atrium.evaluation.evaluator import Benchmark, Draws
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier
from atrium.method.groups import GroupFilter
from atrium.runs.listener import Listener
from atrium.runs.run_folder import RunFolder
from atrium.train.collect import RolloutCollector
from atrium.train.measure.measurements import Measurements
from atrium.train.ranks.ranks import Ranks

PROBLEMS = [Problem(problem_id=str(n), question=str(n), answer=str(n)) for n in range(60)]
GROUP_SIZE = 3
SAMPLING = SamplingParams(max_new_tokens=40)
VERIFIER = MathVerifier(num_workers=1, timeout_s=30.0, memory_limit_mb=512)
KEEP, RESAMPLE = GroupFilter(), GroupFilter(kind="resample", max_num_rounds=5)


class Thread(Ranks):
    """A rank whose others are threads: what each says lies on a table until all have read it."""

    def __init__(self, rank, size, ranks_per_engine, table, barrier):
        self.rank, self.size, self.ranks_per_engine = rank, size, ranks_per_engine
        self.table, self.barrier = table, barrier

    def gather(self, record):
        self.table[self.rank] = record
        self.barrier.wait(timeout=30)
        found = list(self.table)
        self.barrier.wait(timeout=30)
        return found

    def gather_bytes(self, content):
        return self.gather(content)

    def from_first(self, record):
        return self.gather(record)[0]


def on_ranks(size, ranks_per_engine, work):
    """What `work` gives on each rank."""
    table, barrier = [None] * size, threading.Barrier(size)
    ranks = [Thread(rank, size, ranks_per_engine, table, barrier) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, ranks))


@dataclass
class NotingEngine:
    """Answers by seed, in an order of its own, and notes what it was asked."""

    asked: list = field(default_factory=list)
    facts: EngineFacts = EngineFacts()

    def generate(self, requests, sampling):
        self.asked.append([(int(r.prompt_token_ids[0]), r.sample_seeds) for r in requests])
        for index in np.random.default_rng(len(requests)).permutation(len(requests)).tolist():
            number = int(requests[index].prompt_token_ids[0])
            completions = tuple(answer(number, seed) for seed in requests[index].sample_seeds)
            yield Generation(request_index=index, completions=completions)

    @property
    def prompts(self):
        return [number for call in self.asked for number, _ in call]


def answer(number, seed):
    """A completion of a length of its own; every fourth problem is always solved, so its group is silent."""
    draw = np.random.default_rng(seed)
    is_right = number % 4 == 0 or draw.random() < 0.5
    tokens = np.arange(1, 2 + int(draw.integers(1, 30)), dtype=np.int32)
    return Completion(
        token_ids=tokens,
        logprobs=np.full(len(tokens), -0.5, np.float32),
        text=f"\\boxed{{{number + (not is_right)}}}",
        finish_reason=FinishReason.STOP,
        weight_version=0,
    )


class CountingGrader:
    """The real grader, for several threads, and how often it was asked."""

    def __init__(self, pool):
        self.pool, self.lock, self.num_asked = pool, threading.Lock(), 0
        self.compare = pool.compare

    def submit(self, text, gold, metadata):
        with self.lock:
            self.num_asked += 1
            return self.pool.submit(text, gold)


@pytest.fixture(scope="module")
def pool():
    with GraderPool(VERIFIER) as pool:
        yield pool


def encode(problem):
    return np.array([int(problem.problem_id), 1], np.int32)


def collect(engine, grader, ranks, *, num_prompts, group_filter):
    """A step's groups, and what was measured."""
    measurements = Measurements()
    collector = RolloutCollector(
        stream=ProblemStream(PROBLEMS, seed=3),
        encode=encode,
        engine=engine,
        grader=grader,
        reward=lambda group: [float(verdict.is_correct) for verdict in group.verdicts],
        group_filter=group_filter,
        sampling=SAMPLING,
        num_prompts=num_prompts,
        group_size=GROUP_SIZE,
        seed=0,
        ranks=ranks,
    )
    return collector.collect(1, 5, measurements), measurements.values()


def described(groups):
    """All that a group is, in values that compare."""
    return [
        (
            group.problem.problem_id,
            [(r.sample_index, r.reward, r.verdict, r.completion.text) for r in group.rollouts],
            [r.completion.token_ids.tolist() for r in group.rollouts],
        )
        for group in groups
    ]


@pytest.mark.parametrize("group_filter", [KEEP, RESAMPLE], ids=["keep", "resample"])
@pytest.mark.parametrize("num_prompts", [1, 4, 7])
@pytest.mark.parametrize(("size", "ranks_per_engine"), [(4, 1), (4, 2), (4, 4), (2, 2), (6, 3)])
def test_every_prompt_is_answered_by_one_engine_and_graded_once(
    pool, size, ranks_per_engine, num_prompts, group_filter
):
    settings = {"num_prompts": num_prompts, "group_filter": group_filter}
    alone = NotingEngine()
    expected, _ = collect(alone, pool, Ranks(), **settings)
    engines, grader = [NotingEngine() for _ in range(size)], CountingGrader(pool)
    found = on_ranks(
        size, ranks_per_engine, lambda ranks: collect(engines[ranks.rank], grader, ranks, **settings)
    )
    for collected, _ in found:
        assert described(collected.groups) == described(expected.groups)
        assert (collected.trains, collected.cursor) == (expected.trains, expected.cursor)
    for first in range(0, size, ranks_per_engine):
        sharing = engines[first : first + ranks_per_engine]
        assert all(engine.asked == sharing[0].asked for engine in sharing)
    answered = [number for engine in engines[::ranks_per_engine] for number in engine.prompts]
    assert sorted(answered) == sorted(alone.prompts)
    assert grader.num_asked == len(answered) * GROUP_SIZE


def test_tokens_are_counted_once_for_all_ranks_of_an_engine(pool):
    engines = [NotingEngine() for _ in range(4)]
    settings = {"num_prompts": 5, "group_filter": KEEP}
    found = on_ranks(4, 2, lambda ranks: collect(engines[ranks.rank], pool, ranks, **settings))
    sums = [
        sum(
            answer(number, seed).num_tokens
            for call in engine.asked
            for number, seeds in call
            for seed in seeds
        )
        for engine in engines[::2]
    ]
    for collected, measured in found:
        assert (measured[RANK_TOKENS_MIN], measured[RANK_TOKENS_MAX]) == (min(sums), max(sums))
        total = sum(r.completion.num_tokens for group in collected.groups for r in group.rollouts)
        assert sum(sums) == total


class Record(Listener):
    """What was recorded of evaluations."""

    def __init__(self):
        self.samples = []

    def evaluation(self, result):
        self.samples.append(
            [(s.problem.problem_id, s.sample_index, s.text, s.verdict) for s in result.samples]
        )


def evaluated(engine, grader, ranks, num_problems):
    """Mean@K, and what was recorded."""
    benchmark = Benchmark(
        name="numbers",
        problems=tuple(PROBLEMS[:num_problems]),
        num_samples=2,
        sampling=SAMPLING,
        require_stop=True,
    )
    record = Record()
    run = opened_run(None, RunFolder(Path("unused after training began")), [], ranks)
    plan = EvaluationPlan(
        run=replace(run, listener=record),
        validation=JudgedBenchmark(benchmark, grader, VERIFIER),
        tests=(),
        draws=Draws(engine=engine, encode=encode, seed=0, run_seed=0, wave_size=None),
        key="",
    )
    return plan(1, final=True), record.samples


@pytest.mark.parametrize("num_problems", [1, 9])
@pytest.mark.parametrize(("size", "ranks_per_engine"), [(4, 1), (4, 2), (4, 4)])
def test_every_problem_of_an_evaluation_counts_once(pool, size, ranks_per_engine, num_problems):
    value, samples = evaluated(NotingEngine(), pool, Ranks(), num_problems)
    engines, grader = [NotingEngine() for _ in range(size)], CountingGrader(pool)
    found = on_ranks(
        size, ranks_per_engine, lambda ranks: evaluated(engines[ranks.rank], grader, ranks, num_problems)
    )
    assert found == [(value, samples)] + [(value, [])] * (size - 1)
    for first in range(0, size, ranks_per_engine):
        sharing = engines[first : first + ranks_per_engine]
        assert all(engine.asked == sharing[0].asked for engine in sharing)
    assert grader.num_asked == 2 * num_problems
    assert sorted(n for engine in engines[::ranks_per_engine] for n in engine.prompts) == sorted(
        2 * list(range(num_problems))
    )


class Losing(Ranks):
    """A rank that knows who is gone where a connection breaks."""

    def explained(self, error):
        return RankError("rank 1 is gone") if "Connection closed" in str(error) else error


def test_a_rank_that_is_lost_inside_a_shared_vllm_is_named():
    failed = EngineError("vLLM failed (waiting for a decoding step of vLLM)")
    with pytest.raises(RankError, match="rank 1 is gone"), explained_by(Losing()):
        raise failed from RuntimeError("gloo: Connection closed by peer")
    for cause in (RuntimeError("no such kernel"), None):
        with pytest.raises(EngineError, match="waiting for a decoding step"), explained_by(Losing()):
            raise failed from cause
