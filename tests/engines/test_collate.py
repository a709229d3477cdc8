"""Rows from rollout groups: places, masks, dtypes, keys, and what selecting rows leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atrium.base.records import Completion, FinishReason, Problem, Rollout, RolloutGroup, Verdict, VerdictKind
from atrium.engines.collate import collate

PAD = 9


def _completion(token_ids):
    return Completion(
        token_ids=np.array(token_ids, np.int32),
        logprobs=-0.5 - np.arange(len(token_ids), dtype=np.float32),
        text="",
        finish_reason=FinishReason.STOP,
        weight_version=0,
    )


def _group(name, prompt, *completions, rewards):
    rollouts = tuple(
        Rollout(
            sample_index=index,
            completion=_completion(token_ids),
            verdict=Verdict(kind=VerdictKind.CORRECT, reason=""),
            reward=reward,
        )
        for index, (token_ids, reward) in enumerate(zip(completions, rewards, strict=True))
    )
    problem = Problem(problem_id=name, question="", answer="")
    return RolloutGroup(problem=problem, prompt_token_ids=np.array(prompt, np.int32), rollouts=rollouts)


GROUPS = [
    _group("one", [1, 2, 3], [4], [5, 6, 7, 8], rewards=[1.0, 0.1]),
    _group("two", [1], [2, 3], [4, 5, 6], [7], rewards=[0.0, 1 / 3, 1.0]),
]


def _rows(groups=GROUPS, *, trains=(True, False), seed=0):
    return collate(groups, trains=trains, pad_token_id=PAD, seed=seed, device="cpu")


def test_prompt_and_completion_start_at_column_zero_and_padding_follows():
    rows = _rows()
    assert rows.token_BL.dtype == torch.int64
    assert rows.token_BL.tolist() == [
        [1, 2, 3, 4, PAD, PAD, PAD],
        [1, 2, 3, 5, 6, 7, 8],
        [1, 2, 3, PAD, PAD, PAD, PAD],
        [1, 4, 5, 6, PAD, PAD, PAD],
        [1, 7, PAD, PAD, PAD, PAD, PAD],
    ]
    assert rows.num_prompt_tokens_B.tolist() == [3, 3, 1, 1, 1]
    assert rows.num_tokens_B.tolist() == [4, 7, 3, 4, 2]
    assert rows.num_completion_tokens_B.tolist() == [1, 4, 2, 3, 1]


def test_the_objective_sees_completion_tokens_only():
    batch = _rows().batch
    assert batch.mask_BT.tolist() == [
        [True, False, False, False],
        [True, True, True, True],
        [True, True, False, False],
        [True, True, True, False],
        [True, False, False, False],
    ]
    expected_BT = torch.where(batch.mask_BT, -0.5 - torch.arange(4), 0.0)
    assert batch.rollout_logprob_BT.dtype == torch.float32
    assert batch.rollout_logprob_BT.equal(expected_BT)
    assert batch.behavior_logprob_BT is batch.reference_logprob_BT is batch.advantage_BT is None


def test_rewards_keep_their_double_precision_and_groups_their_members():
    batch = _rows().batch
    assert batch.reward_B.dtype == torch.float64
    assert batch.reward_B.tolist() == [1.0, 0.1, 0.0, 1 / 3, 1.0]
    assert batch.group_B.tolist() == [0, 0, 1, 1, 1]
    assert batch.is_trained_B.tolist() == [True, True, False, False, False]


def test_selected_rows_are_cut_to_the_longest_of_them():
    rows = _rows()
    selected = rows.select(np.array([3, 0]))
    assert selected.token_BL.tolist() == [[1, 4, 5, 6], [1, 2, 3, 4]]
    assert selected.num_tokens_B.tolist() == [4, 4]
    assert selected.batch.mask_BT.tolist() == [[True, True, True], [True, False, False]]
    assert selected.batch.reward_B.tolist() == [1 / 3, 1.0]
    assert selected.batch.group_B.tolist() == [1, 0]
    assert selected.batch.sample_key_B.tolist() == rows.batch.sample_key_B[[3, 0]].tolist()


def test_selecting_twice_is_selecting_the_selected():
    rows = _rows()
    twice = rows.select(np.array([4, 1, 2])).select(np.array([2, 0]))
    once = rows.select(np.array([2, 4]))
    assert twice.token_BL.equal(once.token_BL)
    assert twice.batch.mask_BT.equal(once.batch.mask_BT)
    assert twice.batch.rollout_logprob_BT.equal(once.batch.rollout_logprob_BT)


def test_no_rows_may_be_selected():
    selected = _rows().select(np.array([], dtype=np.int64))
    assert selected.token_BL.shape == selected.batch.mask_BT.shape == (0, 0)


def test_a_rows_key_depends_on_its_problem_and_sample_but_not_on_its_place():
    keys = _rows().batch.sample_key_B.tolist()
    assert len(set(keys)) == 5
    swapped = _rows(GROUPS[::-1]).batch.sample_key_B.tolist()
    assert swapped == keys[2:] + keys[:2]
    assert not set(keys) & set(_rows(seed=1).batch.sample_key_B.tolist())


def test_each_group_says_whether_it_trains():
    with pytest.raises(IndexError):
        _rows(trains=(True,))
