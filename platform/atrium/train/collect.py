"""Collecting a step's rollout groups: sample, grade while sampling goes on, reward, filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from atrium import metrics
from atrium.data.problems import ProblemStream
from atrium.grading.grader import Grader
from atrium.grading.rewards import RewardFunction
from atrium.metrics import Quantity
from atrium.objective.groups import GroupFilter
from atrium.records import (
    Completion,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    TokenIds,
    Verdict,
    VerdictKind,
)
from atrium.rollout.engine import Engine, GenerationRequest, SamplingParams
from atrium.seeding import derive_seed
from atrium.train.measurements import Measurements

_VERDICT_SHARES: dict[VerdictKind, Quantity] = {
    VerdictKind.CORRECT: metrics.CORRECT_FRAC,
    VerdictKind.INCORRECT: metrics.INCORRECT_FRAC,
    VerdictKind.NO_ANSWER: metrics.NO_ANSWER_FRAC,
    VerdictKind.TIMED_OUT: metrics.TIMED_OUT_FRAC,
    VerdictKind.CRASHED: metrics.CRASHED_FRAC,
}


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The groups that train, whether each is computed, and the stream's position behind them."""

    groups: tuple[RolloutGroup, ...]
    trains: tuple[bool, ...]
    cursor: int


@dataclass(frozen=True, kw_only=True)
class RolloutCollector:
    """Everything that turns the next problems of a stream into graded groups."""

    stream: ProblemStream
    encode: Callable[[Problem], TokenIds]
    engine: Engine
    grader: Grader
    reward: RewardFunction
    group_filter: GroupFilter
    sampling: SamplingParams
    num_prompts: int
    group_size: int
    seed: int

    def collect(self, step: int, cursor: int, measurements: Measurements) -> Collected:
        """The step's groups. With `resample`, rounds of prompts are added until enough carry a signal."""
        kept: list[RolloutGroup] = []
        rounds = self.group_filter.max_num_rounds if self.group_filter.kind == "resample" else 1
        for _ in range(rounds):
            groups = self._sample(step, cursor, measurements)
            cursor += self.num_prompts
            kept.extend(group for group in groups if self.group_filter.keeps(_rewards(group)))
            if len(kept) >= self.num_prompts:
                break
        kept = kept[: self.num_prompts]
        trains = tuple(self.group_filter.computes(_rewards(group)) for group in kept)
        return Collected(groups=tuple(kept), trains=trains, cursor=cursor)

    def _sample(self, step: int, cursor: int, measurements: Measurements) -> list[RolloutGroup]:
        """One round of prompts, sampled and graded."""
        problems = self.stream.take(cursor, self.num_prompts)
        requests = [
            GenerationRequest(
                prompt_token_ids=self.encode(problem),
                sample_seeds=tuple(
                    derive_seed(self.seed, "rollout", cursor + index, sample)
                    for sample in range(self.group_size)
                ),
            )
            for index, problem in enumerate(problems)
        ]
        started = time.perf_counter()
        graded: dict[int, list[tuple[Completion, Future[Verdict]]]] = {}
        for generation in self.engine.generate(requests, self.sampling):
            gold = problems[generation.request_index].answer
            graded[generation.request_index] = [
                (completion, self.grader.submit(completion.text, gold))
                for completion in generation.completions
            ]
        sampled = time.perf_counter()
        groups = [
            self._group(step, problem, request, graded[index])
            for index, (problem, request) in enumerate(zip(problems, requests, strict=True))
        ]
        measurements.add(metrics.ROLLOUT_S, sampled - started)
        measurements.add(metrics.GRADE_WAIT_S, time.perf_counter() - sampled)
        _measure(groups, sampled - started, measurements)
        return groups

    def _group(
        self,
        step: int,
        problem: Problem,
        request: GenerationRequest,
        graded: Sequence[tuple[Completion, Future[Verdict]]],
    ) -> RolloutGroup:
        rollouts = []
        for sample_index, (completion, future) in enumerate(graded):
            verdict = future.result()
            reward = self.reward(problem.problem_id, sample_index, step, verdict, completion)
            rollouts.append(
                Rollout(sample_index=sample_index, completion=completion, verdict=verdict, reward=reward)
            )
        return RolloutGroup(
            problem=problem, prompt_token_ids=request.prompt_token_ids, rollouts=tuple(rollouts)
        )


def _rewards(group: RolloutGroup) -> tuple[float, ...]:
    return tuple(rollout.reward for rollout in group.rollouts)


def _measure(groups: Sequence[RolloutGroup], sample_s: float, measurements: Measurements) -> None:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = [rollout.completion.num_tokens for rollout in rollouts]
    finishes = [rollout.completion.finish_reason for rollout in rollouts]
    verdicts = [rollout.verdict.kind for rollout in rollouts]
    measurements.add(metrics.REWARD, sum(rollout.reward for rollout in rollouts), len(rollouts))
    measurements.add(metrics.LENGTH_MEAN, sum(lengths), len(lengths))
    measurements.add(metrics.LENGTH_MAX, max(lengths))
    measurements.add(metrics.TRUNCATED_FRAC, finishes.count(FinishReason.LENGTH), len(finishes))
    for kind, quantity in _VERDICT_SHARES.items():
        measurements.add(quantity, verdicts.count(kind), len(verdicts))
    measurements.add(metrics.NUM_TOKENS, sum(lengths))
    measurements.add(metrics.TOKENS_PER_S, sum(lengths), sample_s)
    measurements.add(metrics.NUM_GROUPS_SAMPLED, len(groups))
    num_silent = sum(len(set(_rewards(group))) == 1 for group in groups)
    measurements.add(metrics.NO_SIGNAL_FRAC, num_silent, len(groups))
