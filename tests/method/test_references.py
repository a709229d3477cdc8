"""When a reference moves, and how far."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from atrium.base import metrics
from atrium.method.objective import ObjectiveState
from atrium.method.references import Reference, ReferenceState


def followed(rule, token_kls):
    """The shares after steps 1, 2, ... in which these KLs were measured."""
    state, shares = ReferenceState(), []
    for step, token_kl in enumerate(token_kls, start=1):
        state = rule.after_step(state, step=step, token_kl=token_kl)
        shares.append(state.share)
    return shares


def test_a_frozen_reference_never_moves():
    assert followed(Reference.build("frozen"), [9.0, None, 9.0]) == [0.0, 0.0, 0.0]


def test_a_periodic_reference_becomes_the_policy_at_every_multiple_whether_or_not_a_step_trained():
    assert followed(Reference.build("every_num_steps", num_steps=2), [1.0, None, None, 1.0]) == [
        0.0,
        1.0,
        0.0,
        1.0,
    ]


def test_an_averaged_reference_keeps_its_decay_at_each_step():
    assert followed(Reference.build("moving_average", decay=0.75), [None, 3.0]) == [0.25, 0.25]
    assert followed(Reference.build("moving_average", decay=0.0), [1.0]) == [1.0]


def test_a_bounded_reference_moves_when_the_running_mean_exceeds_the_bound_and_begins_a_new_mean():
    rule = Reference.build("token_kl", bound=0.1, smoothing=0.5)
    # Means: 0.04, 0.08, (nothing trained), 0.12 moves, then 0.04 and 0.1, which does not exceed.
    kls = [0.04, 0.12, None, 0.16, 0.04, 0.16, 0.11]
    assert followed(rule, kls) == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]


def test_an_objective_carries_its_reference_from_step_to_step_and_through_a_checkpoint(compose_method):
    objective = compose_method(
        "grpo_kl", "++algorithm.reference={kind:token_kl,bound:0.1,smoothing:0.5}"
    ).objective
    state = objective.initial_state()
    state = objective.update_state(state, {metrics.REFERENCE_KL.name: 0.08}, step=1)
    assert state.reference == ReferenceState(token_kl=0.08)
    assert ObjectiveState.from_record(json.loads(json.dumps(asdict(state)))) == state
    state = objective.update_state(state, {metrics.REFERENCE_KL.name: 0.16}, step=2)
    assert state.reference == ReferenceState(share=1.0)


def test_a_state_recorded_before_there_were_moving_references_is_read():
    record = {"entropy_coefficient": 0.5, "last_entropy": None}
    assert ObjectiveState.from_record(record) == ObjectiveState(entropy_coefficient=0.5)
    with pytest.raises(TypeError):
        ObjectiveState.from_record({"entropie": 1.0})


def test_the_reference_kl_is_k3_of_policy_and_reference(compose_method, make_case, step):
    case = make_case(3)
    output = step(compose_method("grpo_kl").objective, case).output
    mask_BT, batch = case.batch.mask_BT, case.batch
    x_N = (batch.reference_logprob_BT - case.policy.logprob_BT)[mask_BT]
    total, count = output.sums[metrics.REFERENCE_KL]
    assert total == pytest.approx(float((x_N.exp() - 1.0 - x_N).sum()))
    assert count == mask_BT.sum()
    without = step(compose_method("grpo").objective, case.without_reference()).output
    assert metrics.REFERENCE_KL not in without.sums
