"""Dealing work over ranks, what passes between them, and what a rank of one process answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.train.conftest import exact_model, forward_of, random_groups, rows_of

from atrium.base import metrics
from atrium.base.records import STORED_VERSION
from atrium.train.checkpoint.group_records import bytes_of_groups, groups_of_bytes
from atrium.train.guard.out_of_memory import MicroBatchBudget
from atrium.train.measure.measurements import Measurements
from atrium.train.ranks.rank_report import RankReport
from atrium.train.ranks.ranks import Ranks
from atrium.train.update.micro_batches import deal_by_tokens


class Member(Ranks):
    """A rank whose others have said beforehand what they will say."""

    def __init__(self, rank, size, *, others=()):
        self.rank, self.size = rank, size
        self.others = list(others)
        self.said = []

    def gather(self, record):
        self.said.append(record)
        answers = self.others.pop(0) if self.others else [record] * (self.size - 1)
        return [*answers[: self.rank], record, *answers[self.rank :]]

    def gather_bytes(self, content):
        return self.gather(content)


def budget_of(max_tokens, ranks):
    return MicroBatchBudget(
        max_tokens=max_tokens, shrinks=False, log=print, measurements=Measurements(), ranks=ranks
    )


def lengths(rng, num_rows):
    prompts = rng.integers(1, 20, num_rows)
    return prompts, prompts + rng.integers(1, 200, num_rows), np.sort(rng.integers(0, num_rows, num_rows))


@pytest.mark.parametrize("num_shares", [1, 2, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 64])
def test_shares_hold_every_row_once_and_differ_by_less_than_the_longest(num_shares, num_rows):
    prompts, tokens, index = lengths(np.random.default_rng(num_rows), num_rows)
    shares = deal_by_tokens(prompts, tokens, index, num_shares=num_shares)
    assert len(shares) == num_shares
    assert np.concatenate(shares).tolist() == list(range(num_rows))
    assert len(shares[0]) > 0
    cost = tokens - prompts
    first = np.unique(index, return_index=True)[1]
    cost[first] += prompts[first]
    sums = [cost[share].sum() for share in shares]
    assert max(sums) - min(sums) <= 2 * cost.max()
    assert max(sums) <= cost.sum() / num_shares + cost.max()


def test_one_long_row_is_a_share_of_its_own():
    tokens = np.array([1000, 10, 10, 10])
    shares = deal_by_tokens(np.ones(4, dtype=int), tokens, np.arange(4), num_shares=2)
    assert [share.tolist() for share in shares] == [[0], [1, 2, 3]]


def test_no_rows_are_dealt_as_empty_shares():
    none = np.zeros(0, dtype=np.int64)
    assert [len(share) for share in deal_by_tokens(none, none, none, num_shares=3)] == [0, 0, 0]


@pytest.mark.parametrize("max_tokens", [1, 20, 100_000])
def test_all_ranks_run_equally_many_micro_batches_and_each_row_counts_once(max_tokens):
    rows, forward = rows_of(random_groups(longest=30)), forward_of(exact_model())
    subset = np.arange(1, rows.batch.num_rows)
    budgets = [
        MicroBatchBudget(
            max_tokens=max_tokens,
            shrinks=False,
            log=print,
            measurements=Measurements(),
            ranks=Member(rank, 4),
        )
        for rank in range(4)
    ]
    parts = [list(budget.split(forward, rows, subset)) for budget in budgets]
    assert len({len(found) for found in parts}) == 1
    counted = np.concatenate([part.rows for found in parts for part in found if part.is_real])
    assert np.sort(counted).tolist() == subset.tolist()
    assert parts[0][0].is_real


def test_a_single_row_leaves_the_other_ranks_one_that_does_not_count():
    rows, forward = rows_of(random_groups(rewards=((1,),))), forward_of(exact_model())
    parts = [list(budget_of(99, Member(rank, 3)).split(forward, rows, np.array([0]))) for rank in range(3)]
    assert [[part.is_real for part in found] for found in parts] == [[True], [False], [False]]


def test_groups_pass_between_ranks_unchanged():
    groups = random_groups()
    stored = replace(
        groups[0].rollouts[0].completion, weight_version=STORED_VERSION, stored_reward=0.5, text="ä\n"
    )
    first = replace(groups[0], rollouts=(replace(groups[0].rollouts[0], completion=stored),))
    sent = [first, *groups[1:]]
    for group, found in zip(sent, groups_of_bytes(bytes_of_groups(sent)), strict=True):
        assert found.problem == group.problem
        assert found.prompt_token_ids.tolist() == group.prompt_token_ids.tolist()
        for rollout, other in zip(group.rollouts, found.rollouts, strict=True):
            assert (other.sample_index, other.verdict, other.reward) == (
                rollout.sample_index,
                rollout.verdict,
                rollout.reward,
            )
            mine, theirs = rollout.completion, other.completion
            assert theirs.token_ids.tolist() == mine.token_ids.tolist()
            assert theirs.logprobs.tobytes() == mine.logprobs.tobytes()
            assert (theirs.text, theirs.stored_reward) == (mine.text, mine.stored_reward)
    assert groups_of_bytes(bytes_of_groups([])) == ()


def pair(total, count):
    return torch.tensor(float(total)), torch.tensor(count)


def test_sums_of_ranks_add_up_and_extremes_stay_extremes():
    other = Measurements()
    other.add_sums(
        {metrics.ENTROPY: pair(3.0, 2), metrics.LOSS: pair(0.25, 0), metrics.RATIO_MAX: pair(7.0, 4)}
    )
    said = [[other.as_record(), [[0], [5], [3]]]]
    own = Measurements()
    own.add(metrics.REWARD, 1.0, 4)  # known to all ranks
    own.add_sums({metrics.ENTROPY: pair(1.0, 2), metrics.LOSS: pair(0.5, 1), metrics.RATIO_MAX: pair(2.0, 1)})
    own.sum_over(Member(0, 2, others=[said]))
    values = own.values()
    assert values[metrics.ENTROPY] == 1.0
    assert values[metrics.LOSS] == 0.75  # counted once for both ranks
    assert values[metrics.RATIO_MAX] == 7.0
    assert values[metrics.REWARD] == 0.25
    assert (
        sum(own.ratio_histogram().positive)
        + sum(own.ratio_histogram().negative)
        + sum(own.ratio_histogram().zero)
        == 3
    )


def test_times_are_those_of_the_slowest_rank():
    measurements = Measurements()
    measurements.add(metrics.ROLLOUT_S, 1.0)
    measurements.add(metrics.REWARD, 0.5)
    measurements.agree(Member(0, 2, others=[[{metrics.ROLLOUT_S.name: [3.0, 1.0]}]]))
    assert measurements.values()[metrics.ROLLOUT_S] == 3.0
    assert measurements.values()[metrics.REWARD] == 0.5


def test_a_rank_that_is_slow_for_five_steps_is_named_once():
    told = []
    slow = {"rollout_s": 9.0, "wait_s": 0.0, "peak_mb": 1.0}
    quick = {"rollout_s": 1.0, "wait_s": 8.0, "peak_mb": 2.0}
    report = RankReport(Member(0, 3), log=told.append)
    for step in range(1, 9):
        measurements = Measurements()
        measurements.add(metrics.ROLLOUT_S, 1.0)
        measurements.add(metrics.PEAK_MEMORY_MB, 3.0)
        report.ranks.others = [[slow, quick], [{}, {}]]
        report.add(step, measurements)
        assert measurements.values()[metrics.RANK_WAIT_MAX_S] == 8.0
        assert measurements.values()[metrics.RANK_PEAK_MIN_MB] == 1.0
    assert len(told) == 1
    assert told[0].startswith("rank 1 is slow")


def test_ranks_without_a_sampling_time_report_their_waits_and_memory():
    measurements = Measurements()  # as continuous sampling makes them
    measurements.add(metrics.PEAK_MEMORY_MB, 3.0)
    other = {"wait_s": 8.0, "peak_mb": 1.0}
    RankReport(Member(0, 2, others=[[other], [{}]])).add(1, measurements)
    values = measurements.values()
    assert values[metrics.RANK_WAIT_MAX_S] == 8.0
    assert values[metrics.RANK_PEAK_MIN_MB] == 1.0
    assert metrics.RANK_ROLLOUT_MIN_S not in values


def test_one_process_reports_nothing_about_ranks():
    measurements = Measurements()
    RankReport().add(1, measurements)
    assert measurements.values() == {}


def test_one_process_answers_itself():
    ranks = Ranks()
    tensor = torch.ones(2)
    assert (ranks.is_first, ranks.is_alone, ranks.gather("x"), ranks.any(False)) == (True, True, ["x"], False)
    assert ranks.add_up(tensor) is tensor
    assert ranks.share([1, 2, 3]) == [1, 2, 3]
    with ranks.first_alone("preparing"):
        pass


@pytest.mark.parametrize("size", [1, 2, 5])
def test_things_are_dealt_one_by_one(size):
    shares = [Member(rank, size).share(range(4)) for rank in range(size)]
    assert sorted(one for share in shares for one in share) == [0, 1, 2, 3]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
