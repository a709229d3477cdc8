"""Completions are graded while others are still sampled, by the real grader's worker process."""

from __future__ import annotations

import time

import numpy as np

from atrium.base.records import Completion, FinishReason, Problem
from atrium.data.problems import ProblemStream
from atrium.engines.engine import EngineFacts, Generation, SamplingParams
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier
from atrium.method.groups import GroupFilter
from atrium.train.collect import RolloutCollector
from atrium.train.measure.measurements import Measurements

PROBLEMS = [Problem(problem_id=str(n), question=f"{n}", answer=f"\\sqrt{{{n}}}") for n in range(1, 5)]
PATIENCE_S = 60.0


class KeptGrader:
    """The grader, and every verdict that it has promised."""

    def __init__(self, pool):
        self.pool = pool
        self.promised = []

    def submit(self, text, gold, metadata):
        self.promised.append(self.pool.submit(text, gold))
        return self.promised[-1]


class EngineThatTakesLong:
    """Samples a prompt only once the verdicts of the one before are there, or never if they do not come."""

    facts = EngineFacts()

    def __init__(self, grader):
        self.grader = grader
        self.num_graded_before = []

    def generate(self, requests, sampling):
        for index, request in enumerate(requests):
            ends = time.monotonic() + PATIENCE_S
            while not all(verdict.done() for verdict in self.grader.promised):
                if time.monotonic() > ends:
                    return
                time.sleep(0.005)
            self.num_graded_before.append(len(self.grader.promised))
            yield Generation(
                request_index=index,
                completions=tuple(answer(request.prompt_token_ids[0], seed) for seed in request.sample_seeds),
            )


def answer(number, seed):
    """A completion that only a worker can grade: the same number, written in another way."""
    text = f"so it is \\boxed{{\\frac{{{number}}}{{\\sqrt{{{number}}}}} + 0 \\cdot {seed % 97}}}"
    tokens = np.arange(1, 4, dtype=np.int32)
    return Completion(
        token_ids=tokens,
        logprobs=np.full(3, -1.0, np.float32),
        text=text,
        finish_reason=FinishReason.STOP,
        weight_version=0,
    )


def test_the_verdicts_of_one_prompt_come_while_the_next_is_being_sampled():
    with GraderPool(MathVerifier(num_workers=1, timeout_s=30.0, memory_limit_mb=512)) as pool:
        grader = KeptGrader(pool)
        engine = EngineThatTakesLong(grader)
        collector = RolloutCollector(
            stream=ProblemStream(PROBLEMS, seed=0),
            encode=lambda problem: np.array([int(problem.problem_id)], np.int32),
            engine=engine,
            grader=grader,
            reward=lambda group: [float(verdict.is_correct) for verdict in group.verdicts],
            group_filter=GroupFilter(),
            sampling=SamplingParams(max_new_tokens=4),
            num_prompts=4,
            group_size=2,
            seed=0,
        )
        collected = collector.collect(1, 0, Measurements())
    assert engine.num_graded_before == [0, 2, 4, 6]
    assert [rollout.reward for group in collected.groups for rollout in group.rollouts] == [1.0] * 8
