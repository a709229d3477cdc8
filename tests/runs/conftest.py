"""A small run as training would record it, and what goes into one."""

from __future__ import annotations

import math
import resource
from contextlib import contextmanager

import numpy as np
import pytest
from tests.run_records import evaluated_sample, group_of_two, sum_problem, write_run

from atrium.base.records import BenchmarkResult, TokenTrace
from atrium.runs.run_folder import RunFolder


@pytest.fixture
def no_room_beyond():
    """A context in which no file grows beyond so many bytes: the write that does is cut short."""

    @contextmanager
    def limit(num_bytes):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def groups():
    """Make `num_problems` groups of two rollouts, the second one truncated and wrong."""

    def make(num_problems=2, num_tokens=5, text="\\boxed{1}"):
        rng = np.random.default_rng(num_problems)
        return [
            group_of_two(problem, rng, num_tokens=num_tokens, text=text, weight_version=3)
            for problem in (sum_problem(number, level="2") for number in range(num_problems))
        ]

    return make


@pytest.fixture
def trace():
    return TokenTrace(
        advantage=(0.5, 0.5, 0.5, 0.5, 0.5),
        ratio=(1.0, 1.25, 0.75, 1.0, 1.5),
        entropy=(0.1, 0.2, 0.3, 0.4, 0.5),
        clipped=(0, 1, 0, 0, 1),
    )


@pytest.fixture
def samples():
    """Make the samples of an evaluation: `k` per problem, `num_correct` of them correct."""

    def make(num_problems=3, k=4, num_correct=2, text="\\boxed{5}"):
        return [
            evaluated_sample(problem, index, is_correct=index < num_correct, text=text)
            for problem in (sum_problem(number, level="2") for number in range(num_problems))
            for index in range(k)
        ]

    return make


@pytest.fixture
def results():
    """Make the results of an evaluation, in the form that the evaluator gives them."""

    def make(mean, k=8, num_problems=3):
        return {
            "k": k,
            "mean_at_k": mean,
            "pass_at_k": min(mean + 0.2, 1.0),
            "interval_over_problems": [max(mean - 0.1, 0.0), min(mean + 0.1, 1.0)],
            "interval_sampling": None,
            "num_problems": num_problems,
            "pass_at_intervals": {str(k): {"over_problems": [mean, min(mean + 0.3, 1.0)]}},
            "breakdown": {"level": {"2": {"mean_at_k": mean}}},
        }

    return make


@pytest.fixture
def metrics():
    """Make the metrics of a step: curves that rise and fall."""

    def make(step):
        decay = math.exp(-step / 5)
        return {
            "rollout/reward": 0.9 - 0.6 * decay,
            "objective/entropy": 0.3 * decay,
            "rollout/completion_length": 28 - 18 * decay,
            "rollout/num_tokens": 1000.0 + step,
            "objective/clip_high_frac": 0.001,
            "objective/clip_low_frac": 0.01 / 3,
        }

    return make


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "runs", "quickstart", "atr", 0)


@pytest.fixture
def record(samples, results, metrics, groups):
    """Record steps `first` to `last` of a run: rollouts every 2, validation every 3, test at both ends."""

    def run(folder, first=1, last=6, num_steps=6):
        def evaluations(step):
            at_ends = ["test"] if step in (0, num_steps) else []
            for benchmark in ["validation", *at_ends] if step % 3 == 0 else at_ends:
                yield BenchmarkResult(
                    step=step, benchmark=benchmark, samples=samples(), results=results(0.2 + step / 10)
                )

        return write_run(
            folder,
            first=first,
            last=last,
            num_steps=num_steps,
            metrics=metrics,
            evaluations=evaluations,
            rollouts=lambda step: (groups(), {}),
            rollouts_every_num_steps=2,
        )

    return run
