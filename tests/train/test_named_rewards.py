"""Named rewards of a batch: measured, kept in checkpoints and rollout files, and handed to the objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from atrium.data.problems import ProblemStream
from atrium.engines.engine import SamplingParams
from atrium.method.groups import GroupFilter
from atrium.runs.sample_files import read_samples, write_rollouts
from atrium.train.checkpoint.group_records import bytes_of_groups, groups_of_bytes
from atrium.train.collect import RolloutCollector, measure_groups
from atrium.train.measure.measurements import Measurements


@pytest.fixture
def groups(make):
    """Rewards `right` and half of `form`, which abstains for the second completion of each group."""

    def named(rollout):
        form = None if rollout.sample_index == 1 else 0.5 * rollout.sample_index
        parts = {"right": (rollout.reward, 1.0), "form": (form, 0.5)}
        return replace(rollout, parts=parts, reward=rollout.reward + 0.5 * (form or 0.0))

    return [
        replace(group, rollouts=tuple(named(one) for one in group.rollouts))
        for group in make.groups(rewards=((1, 0, 0), (0, 1, 1), (1, 1, 0)))
    ]


def test_checkpoints_and_ranks_give_named_rewards_back(groups):
    found = groups_of_bytes(bytes_of_groups(groups))
    assert [one.parts for group in found for one in group.rollouts] == [
        one.parts for group in groups for one in group.rollouts
    ]


def test_each_reward_has_its_mean_and_its_share_of_the_variance(groups):
    measurements = Measurements()
    measure_groups(groups, 1.0, measurements)
    named = measurements.named()
    assert named["rollout/reward/right"] == pytest.approx(5 / 9)
    assert named["rollout/reward/form"] == pytest.approx(0.5)
    sums = np.array([[one.reward for one in group.rollouts] for group in groups])
    right = np.array([[one.parts["right"][0] for one in group.rollouts] for group in groups])
    centred = sums - sums.mean(axis=1, keepdims=True)
    share = (centred * right).sum() / (centred**2).sum()
    assert named["rollout/reward_variance_share/right"] == pytest.approx(share)
    assert named["rollout/reward_variance_share/form"] == pytest.approx(1.0 - share)
    assert Measurements.from_record(measurements.as_record()).named() == named


def test_rows_hold_the_values_by_name_and_rollouts_a_column_each(make, groups, tmp_path):
    batch = make.rows(groups).batch
    expected_BK = torch.tensor([[0.0, 1.0], [torch.nan, 0.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(batch.reward_BK[:3], expected_BK, rtol=0.0, atol=0.0, equal_nan=True)
    assert batch.weight_BK[0].tolist() == [0.5, 1.0]
    path = tmp_path / "step-000001.parquet"
    write_rollouts(path, 1, groups, ())
    rows = read_samples(path, ["reward", "reward/right", "reward/form"])
    assert rows[1] == {"reward": 0.0, "reward/right": 0.0, "reward/form": None}


def _with_parts(group, *parts):
    """The group with rewards `right` and `short` of weight 1, and `seen` of weight 0."""
    rollouts = tuple(
        replace(
            one,
            reward=right + (short or 0.0),
            parts={"right": (right, 1.0), "short": (short, 1.0), "seen": (0.5, 0.0)},
        )
        for one, (right, short) in zip(group.rollouts, parts, strict=True)
    )
    return replace(group, rollouts=rollouts)


@pytest.mark.parametrize(
    ("parts", "sums_differ", "rewards_differ"),
    [
        ([(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)], False, True),
        ([(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)], False, False),
        ([(1.0, 0.5), (1.0, None), (1.0, 0.5)], True, False),
        ([(1.0, 0.5), (1.0, 0.0), (1.0, 0.5)], True, True),
    ],
    ids=["equal sums", "all equal", "one abstains", "sums differ"],
)
def test_group_is_silent_only_if_every_reward_is_where_each_has_an_advantage(
    make, parts, sums_differ, rewards_differ
):
    group = _with_parts(make.groups(rewards=((0, 0, 0),))[0], *parts)
    collector = RolloutCollector(
        stream=ProblemStream([group.problem], seed=0),
        encode=None,
        engine=None,
        grader=None,
        reward=None,
        group_filter=GroupFilter(kind="drop"),
        sampling=SamplingParams(max_new_tokens=20),
        num_prompts=1,
        group_size=3,
        seed=0,
    )
    for per_reward, differs in ((False, sums_differ), (True, rewards_differ)):
        assert replace(collector, per_reward=per_reward).keeps(group) is differs
        measurements = Measurements()
        measure_groups([group], 1.0, measurements, per_reward=per_reward)
        assert measurements.named()["rollout/no_signal_frac"] == float(not differs)
