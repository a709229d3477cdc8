"""Collection of a step's rollout groups: sampling, concurrent grading, rewards, and filtering."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from atrium.base import metrics
from atrium.base.metrics import Quantity
from atrium.base.records import (
    Completion,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    TokenIds,
    Verdict,
    VerdictKind,
)
from atrium.base.seeding import derive_seed
from atrium.data.problems import ProblemStream
from atrium.data.prompts import PromptEncoder
from atrium.engines.engine import GenerationRequest, Sampler, SamplingParams
from atrium.grading.grader import Grader
from atrium.grading.rewards import GradedGroup, RewardFunction
from atrium.grading.several import rewards_of
from atrium.method.groups import GroupFilter
from atrium.train.checkpoint.group_records import bytes_of_groups, groups_of_bytes
from atrium.train.measure.measurements import Measurements
from atrium.train.ranks.ranks import Ranks

_VERDICT_SHARES: dict[VerdictKind, Quantity] = {
    VerdictKind.CORRECT: metrics.CORRECT_FRAC,
    VerdictKind.INCORRECT: metrics.INCORRECT_FRAC,
    VerdictKind.NO_ANSWER: metrics.NO_ANSWER_FRAC,
    VerdictKind.TIMED_OUT: metrics.TIMED_OUT_FRAC,
    VerdictKind.CRASHED: metrics.CRASHED_FRAC,
}


Graded = Sequence[tuple[Completion, Future[Verdict]]]
"""The completions of a problem, each with its pending verdict."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """A step's batch.

    Attributes
    ----------
    groups, trains
        The groups, and whether updates run the model on each of them. Means over the batch count all groups,
        even those on which no update runs the model.
    cursor
        The position in the stream of problems after the batch.
    measurements
        The measurements of sampling; the training step adds its own.
    """

    groups: tuple[RolloutGroup, ...]
    trains: tuple[bool, ...]
    cursor: int
    measurements: Measurements


@dataclass(frozen=True, kw_only=True)
class RolloutCollector:
    """A collector that turns the next problems of a stream into graded rollout groups.

    Prompts are distributed over the engines of the `ranks`. Each engine's share is sampled and graded, and
    then every rank receives all groups. With `require_stop`, truncated answers count as incorrect for the
    group filter, as they do for the reward. With `per_reward`, each of several rewards has its own
    advantages.
    """

    stream: ProblemStream
    encode: PromptEncoder
    engine: Sampler
    grader: Grader
    reward: RewardFunction
    group_filter: GroupFilter
    sampling: SamplingParams
    num_prompts: int
    group_size: int
    seed: int
    sampling_stream: int = 0
    ranks: Ranks = Ranks()
    require_stop: bool = False
    per_reward: bool = False

    def collect(
        self, step: int, cursor: int, measurements: Measurements, sampler: Sampler | None = None
    ) -> Collected:
        """Sample, grade and filter the groups of a step, starting at problem `cursor` of the stream.

        With the filter `resample`, the group of the next prompt replaces each rejected group, until
        `max_num_rounds` times `num_prompts` prompts are sampled. Which prompts are sampled depends on rewards
        and verdicts, but not on the order in which completions finish. If given, `sampler` replaces the
        engine.
        """
        replaces = self.group_filter.kind == "resample"
        limit = self.num_prompts * (self.group_filter.max_num_rounds if replaces else 1)
        groups = self._sample(step, cursor, limit, measurements, sampler or self.engine)
        return self.collected(groups, cursor + len(groups), measurements)

    def collected(self, groups: Sequence[RolloutGroup], cursor: int, measurements: Measurements) -> Collected:
        """Return a batch of the groups that the filter keeps, without completions whose reward is None.

        `cursor` is the position in the stream of problems after the groups.
        """
        kept = tuple(_rewarded(group) for group in groups if self.keeps(group))
        trains = tuple(self.group_filter.computes(differs=self._differs(group)) for group in kept)
        return Collected(groups=kept, trains=trains, cursor=cursor, measurements=measurements)

    @property
    def knows_next_cursor(self) -> bool:
        """Whether each batch uses exactly `num_prompts` problems, so that the next cursor is predictable."""
        return self.group_filter.kind != "resample"

    def keeps(self, group: RolloutGroup) -> bool:
        """Return whether the batch keeps a group.

        The filter ignores completions whose reward is None. A group with such completions is kept only if at
        least two completions with a reward remain.
        """
        rewarded = _rewarded(group)
        if rewarded is not group and len(rewarded.rollouts) < 2:
            return False
        return self.group_filter.keeps(differs=self._differs(rewarded))

    def _differs(self, group: RolloutGroup) -> bool:
        """Return whether the group's completions differ in the filter's criterion: reward or correctness."""
        if self.group_filter.judge == "reward":
            return _has_signal(group, per_reward=self.per_reward)
        return len({self._is_correct(rollout) for rollout in group.rollouts}) > 1

    def _is_correct(self, rollout: Rollout) -> bool:
        is_cut_off = rollout.completion.finish_reason is FinishReason.LENGTH
        return rollout.verdict.is_correct and not (self.require_stop and is_cut_off)

    def _sample(
        self, step: int, cursor: int, limit: int, measurements: Measurements, sampler: Sampler
    ) -> list[RolloutGroup]:
        """Return the groups of `num_prompts` prompts, and one additional group for each rejected group.

        There are at most `limit` groups. Groups are graded while others are sampled. In a run with a single
        process, prompts that replace rejected groups are added to the same call of the engine if the engine
        accepts further requests.
        """
        round_ = _Round(self, step, cursor)
        num_wanted = min(self.num_prompts, limit)
        sample_s = wait_s = 0.0
        num_before = sampler.facts.num_preempted
        while len(round_.requests) < num_wanted:
            places = round_.extend(num_wanted)
            while places:
                started = time.perf_counter()
                requests = [round_.requests[place] for place in places]
                for generation in sampler.generate(requests, self.sampling):
                    round_.take(places[generation.request_index], generation.completions)
                    if not self.ranks.is_alone:
                        continue  # the number of replacements is known when all ranks are done
                    num_wanted = min(self.num_prompts + round_.num_rejected(wait=False), limit)
                    added = round_.extend(num_wanted)
                    places += added  # `generate` also samples requests that are appended while it runs
                    requests += [round_.requests[place] for place in added]
                sample_s += time.perf_counter() - started
                places = round_.unanswered()
            started = time.perf_counter()
            round_.exchange()
            num_wanted = min(self.num_prompts + round_.num_rejected(wait=True), limit)
            wait_s += time.perf_counter() - started
        groups = round_.groups()
        measurements.add(metrics.ROLLOUT_S, sample_s)
        if num_before is not None and (num_now := sampler.facts.num_preempted) is not None:
            measurements.add(metrics.NUM_PREEMPTED, num_now - num_before)
        measurements.add(metrics.GRADE_WAIT_S, wait_s)
        sample_s = max(self.ranks.gather(sample_s))
        measure_groups(groups, sample_s, measurements, per_reward=self.per_reward)
        if not self.ranks.is_alone:
            tokens = [_num_tokens(share) for share in self.ranks.shares(groups)]
            measurements.add(metrics.RANK_TOKENS_MIN, min(tokens))
            measurements.add(metrics.RANK_TOKENS_MAX, max(tokens))
        return groups

    def submit(self, problem: Problem, completions: Sequence[Completion]) -> Graded:
        """Start grading a problem's completions, and return each completion with its pending verdict."""
        submit = self.grader.submit
        return [(one, submit(one.text, problem.answer, problem.judged_by)) for one in completions]

    def group(self, step: int, problem: Problem, prompt_token_ids: TokenIds, graded: Graded) -> RolloutGroup:
        """Wait for the verdicts on a problem's completions, and return its group with rewards for `step`."""
        completions, verdicts = zip(*((one, future.result()) for one, future in graded), strict=True)
        rewards, parts = rewards_of(
            self.reward,
            GradedGroup(
                problem=problem,
                completions=completions,
                verdicts=verdicts,
                step=step,
                seed=self.seed,
                max_new_tokens=self.sampling.max_new_tokens,
            ),
        )
        rollouts = [
            Rollout(sample_index=place, completion=completion, verdict=verdict, reward=reward, parts=named)
            for place, (completion, verdict, reward, named) in enumerate(
                zip(completions, verdicts, rewards, parts, strict=True)
            )
        ]
        return RolloutGroup(problem=problem, prompt_token_ids=prompt_token_ids, rollouts=tuple(rollouts))

    def request(self, problem: Problem, position: int) -> GenerationRequest:
        """Return the engine request for a problem. Its sample seeds depend on `position` in the stream."""
        # Stream 0 keeps the draws of versions without streams.
        stream = (self.sampling_stream,) if self.sampling_stream else ()
        return GenerationRequest(
            prompt_token_ids=self.encode(problem),
            sample_seeds=tuple(
                derive_seed(self.seed, "rollout", position, sample, *stream)
                for sample in range(self.group_size)
            ),
        )


class _Round:
    """The prompts of a step so far, in the order of the stream, with their completions and grades."""

    def __init__(self, collector: RolloutCollector, step: int, cursor: int) -> None:
        self.requests: list[GenerationRequest] = []
        self._collector = collector
        self._step = step
        self._cursor = cursor
        self._problems: list[Problem] = []
        self._answered: set[int] = set()
        self._graded: dict[int, Graded] = {}
        self._groups: dict[int, RolloutGroup] = {}
        self._num_rejected = 0
        self._num_exchanged = 0

    def extend(self, num_wanted: int) -> list[int]:
        """Add prompts until there are `num_wanted`; return the indices of this engine's new prompts."""
        first = len(self.requests)
        position = self._cursor + first
        for problem in self._collector.stream.take(position, max(0, num_wanted - first)):
            self.requests.append(self._collector.request(problem, self._cursor + len(self.requests)))
            self._problems.append(problem)
        return self._own(first)

    def take(self, place: int, completions: Sequence[Completion]) -> None:
        """Submit the completions of prompt number `place` for grading, and mark the prompt as answered.

        If this rank does not lead its engine's ranks, the prompt is only marked, since the leading rank
        grades it.
        """
        self._answered.add(place)
        if not self._collector.ranks.leads_engine:
            return  # the leading rank sends the group
        self._graded[place] = self._collector.submit(self._problems[place], completions)

    def unanswered(self) -> list[int]:
        """Return the indices of this engine's prompts that have no completions yet."""
        return [place for place in self._own(0) if place not in self._answered]

    def _own(self, first: int) -> list[int]:
        share = self._collector.ranks.share(range(len(self.requests)))
        return [place for place in share if place >= first]

    def exchange(self) -> None:
        """Wait for the grades of this rank's prompts, then exchange graded groups with the other ranks."""
        ranks = self._collector.ranks
        if ranks.is_alone:
            return
        self.num_rejected(wait=True)
        first, shares = self._num_exchanged, ranks.shares(range(len(self.requests)))
        found_here = [self._groups[place] for place in self._own(first)] if ranks.leads_engine else []
        content = bytes_of_groups(found_here)
        for share, found in zip(shares, ranks.gather_bytes(content)[:: ranks.ranks_per_engine], strict=True):
            places = [place for place in share if place >= first]
            for place, group in zip(places, groups_of_bytes(found), strict=True):
                if place not in self._groups:
                    self._keep(place, group)
        self._num_exchanged = len(self.requests)

    def num_rejected(self, *, wait: bool) -> int:
        """Return how many graded groups were rejected. With `wait`, first wait for all pending verdicts."""
        for place, graded in self._graded.items():
            if place not in self._groups and (wait or all(future.done() for _, future in graded)):
                self._keep(place, self._group(place, graded))
        return self._num_rejected

    def _keep(self, place: int, group: RolloutGroup) -> None:
        self._groups[place] = group
        self._num_rejected += not self._collector.keeps(group)

    def groups(self) -> list[RolloutGroup]:
        """Return the graded groups of all prompts, in the order of the stream."""
        return [self._groups[place] for place in range(len(self.requests))]

    def _group(self, place: int, graded: Graded) -> RolloutGroup:
        prompt_token_ids = self.requests[place].prompt_token_ids
        return self._collector.group(self._step, self._problems[place], prompt_token_ids, graded)


def _rewards(group: RolloutGroup) -> list[float]:
    return [rollout.reward for rollout in group.rollouts if rollout.reward is not None]


def _rewarded(group: RolloutGroup) -> RolloutGroup:
    """Return the group without the completions whose reward is None.

    If all completions have a reward, the group itself is returned.
    """
    rollouts = tuple(rollout for rollout in group.rollouts if rollout.reward is not None)
    return group if len(rollouts) == len(group.rollouts) else replace(group, rollouts=rollouts)


def _num_tokens(groups: Sequence[RolloutGroup]) -> int:
    return sum(rollout.completion.num_tokens for group in groups for rollout in group.rollouts)


def _has_signal(group: RolloutGroup, *, per_reward: bool) -> bool:
    """Return whether the group's rewards differ, ignoring completions whose reward is None.

    Compares the total reward, or with `per_reward` each reward of nonzero weight separately.
    """
    rewarded = _rewarded(group).rollouts
    columns = [[one.reward for one in rewarded]]
    if per_reward and rewarded and rewarded[0].parts:
        parts = [[one.parts[name] for one in rewarded] for name in rewarded[0].parts]
        columns = [[value for value, weight in part if value is not None and weight] for part in parts]
    return any(len(set(column)) > 1 for column in columns)


def measure_groups(
    groups: Sequence[RolloutGroup], sample_s: float, measurements: Measurements, *, per_reward: bool = False
) -> None:
    """Add the metrics of groups that were sampled in `sample_s` seconds.

    With `per_reward`, a group has no signal only if no single reward differs between its completions.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = [rollout.completion.num_tokens for rollout in rollouts]
    finishes = [rollout.completion.finish_reason for rollout in rollouts]
    verdicts = [rollout.verdict.kind for rollout in rollouts]
    rewards = [reward for group in groups for reward in _rewards(group)]
    if rewards:
        measurements.add(metrics.REWARD, sum(rewards), len(rewards))
    _measure_parts(groups, measurements)
    measurements.add(metrics.ABSTAINED_FRAC, len(rollouts) - len(rewards), len(rollouts))
    measurements.add(metrics.LENGTH_MEAN, sum(lengths), len(lengths))
    measurements.add(metrics.LENGTH_MAX, max(lengths))
    measurements.add(metrics.TRUNCATED_FRAC, finishes.count(FinishReason.LENGTH), len(finishes))
    for kind, quantity in _VERDICT_SHARES.items():
        measurements.add(quantity, verdicts.count(kind), len(verdicts))
    measurements.add(metrics.NUM_TOKENS, sum(lengths))
    measurements.add(metrics.TOKENS_PER_S, sum(lengths), sample_s)
    measurements.add(metrics.NUM_GROUPS_SAMPLED, len(groups))
    num_silent = sum(not _has_signal(group, per_reward=per_reward) for group in groups)
    measurements.add(metrics.NO_SIGNAL_FRAC, num_silent, len(groups))


def _measure_parts(groups: Sequence[RolloutGroup], measurements: Measurements) -> None:
    """Add two metrics of each named reward: its mean, and its share of the total reward's variance.

    The variance is computed within groups. Nothing is added if the groups have no named rewards.
    """
    kept = [_rewarded(group).rollouts for group in groups]
    for name in dict.fromkeys(name for group in groups for one in group.rollouts for name in one.parts):
        mean, share = metrics.part_quantities(name)
        values = [one.parts[name][0] for group in groups for one in group.rollouts]
        found = [value for value in values if value is not None]
        measurements.add(mean, sum(found), len(found))
        covariance = variance = 0.0
        for rollouts in kept:
            sums = np.array([one.reward for one in rollouts], dtype=np.float64)
            sums = sums - sums[:1]  # so that equal sums have no variance
            centred = sums - sums.mean() if len(sums) else sums
            terms = [weight * (value or 0.0) for value, weight in (one.parts[name] for one in rollouts)]
            covariance += float(centred @ np.array(terms))
            variance += float(centred @ centred)
        measurements.add(share, covariance, variance)
