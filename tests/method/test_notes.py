"""What a method says about a run that it is used in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atrium import load_method
from atrium.config.compose import compose
from atrium.method.needs import Use
from atrium.method.objective import Objective

LAGGED = Use(
    num_updates_per_batch=4,
    group_size=8,
    lag=1,
    dtype="bfloat16",
    max_length=3_000,
)


@pytest.mark.parametrize(
    ("changes", "is_noted"),
    [
        ({}, False),  # the trainer is compared with itself
        ({"lag": 0}, False),
        ({"reads_stored": True}, True),
        ({"reads_stored": True, "dtype": "float32"}, False),
        ({"reads_stored": True, "max_length": 100_000}, False),  # the mean of more tokens is less noisy
        ({"lag": 0, "behavior_logprobs": "engine"}, True),
        ({"behavior_logprobs": "engine"}, True),
    ],
)
def test_a_window_narrower_than_rounding_is_noted_where_engine_and_trainer_meet(changes, is_noted):
    notes = compose(["algorithm=gspo"]).method.notes(replace(LAGGED, **changes))
    assert [note for note in notes if "0.00037 nats on sequences of 3,000 tokens" in note] == notes
    assert bool(notes) is is_noted
    assert compose(["algorithm=grpo"]).method.notes(replace(LAGGED, **changes)) == []


def test_the_remedy_for_a_method_that_asks_for_the_engine_is_another_precision():
    lines = ["algorithm=grpo", "divergence.delta=0.001", "algorithm.ratio.gate.anchor=rollout"]
    [note] = compose(lines).method.notes(replace(LAGGED, lag=0))
    assert note.endswith(
        "0.02 nats per token, more than the window [0.999, 1.001] allows, so rounding alone causes clipping; "
        "compute.dtype=float32 rounds less"
    )


def test_without_stale_data_decoupled_is_grpo_and_says_so():
    decoupled, grpo = (compose([f"algorithm={name}"]).method for name in ("decoupled", "grpo"))
    fresh = replace(LAGGED, lag=0)
    assert decoupled.same_as(grpo, fresh)
    assert not decoupled.same_as(grpo, LAGGED)
    [note] = decoupled.notes(fresh)
    assert note.startswith("rollout.lag=0: ")
    assert decoupled.notes(LAGGED) == grpo.notes(fresh) == []


@pytest.mark.parametrize(("name", "is_noted"), [("eighty_twenty", False), ("fipo", True)])
def test_only_a_token_weight_that_reads_log_ratios_has_an_anchor(name, is_noted):
    proximal = [f"algorithm.ratio.{side}.anchor=proximal" for side in ("gate", "weight")]
    notes = load_method(name, *proximal).method.notes(replace(LAGGED, lag=0))
    assert any("proximal and behavior are the same" in note for note in notes) is is_noted


def test_a_trust_region_around_the_start_of_the_step_is_idle_in_one_update_however_old_the_data():
    decoupled, grpo = (compose([f"algorithm={name}"]).method for name in ("decoupled", "grpo"))
    once = replace(LAGGED, num_updates_per_batch=1)
    assert decoupled.is_idle(once)
    assert not grpo.is_idle(once)
    assert decoupled.notes(once) == [
        "one update per batch: the policy is still the proximal policy, every ratio to it is 1, and "
        "divergence=ratio clips nothing"
    ]


def test_topr_is_the_same_method_as_by_sign_of_the_reward_over_a_window(make_case, step):
    parts = "of: reward, positive: {kind: reinforce}, negative: {kind: weight_clip}"
    topr = load_method("topr").method
    spelled_out = load_method(
        "topr",
        *("divergence=window", "divergence.lower=0.0", "divergence.upper=1.0"),
        f"algorithm.surrogate={{kind: by_sign, {parts}}}",
    ).method
    assert topr.same_as(spelled_out)
    assert not topr.same_as(load_method("topr", "algorithm.surrogate.upper=2.0").method)
    first, second = (step(Objective(method), make_case(3)) for method in (topr, spelled_out))
    assert torch.equal(first.gradient_BT, second.gradient_BT)
