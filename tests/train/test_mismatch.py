"""The cause of a mismatch between engine and trainer, by one row alone through the whole model."""

from __future__ import annotations

import pytest
from tests.models.test_zoo import TEMPERATURE, sampled_rows
from tests.models.zoo import zoo_policy

from atrium.base.errors import EngineError
from atrium.train.measure.mismatch import check_mismatch, mismatch_cause
from atrium.train.update import packed_attention
from atrium.train.update.forward import PolicyForward

BOUND = 1e-3


def cause(forward, rows, mean=1.0, bound=BOUND):
    return mismatch_cause(forward, rows, 10_000, mean, bound)


def test_packed_rows_that_drop_a_window_are_named_and_the_setting_that_pads(monkeypatch):
    monkeypatch.setattr(packed_attention, "attention_obstacle", lambda *_: None)
    policy = zoo_policy("phimoe")
    rows = sampled_rows(policy)
    packed = cause(PolicyForward(policy.model, temperature=TEMPERATURE), rows)
    assert "the trainer's packed rows disagree" in packed
    assert "compute.packing=false" in packed
    padded = PolicyForward(policy.model, temperature=TEMPERATURE, packing=False)
    assert "the trainer" not in cause(padded, rows).partition("so ")[2]


@pytest.mark.parametrize("packing", [True, False])
def test_an_engine_with_other_weights_is_named_and_no_bound_is_raised(packing):
    rows = sampled_rows(zoo_policy("llama", seed=1))
    forward = PolicyForward(zoo_policy("llama").model, temperature=TEMPERATURE, packing=packing)
    said = cause(forward, rows)
    assert "so the engine disagrees" in said
    assert "max_mismatch" not in said


def test_padded_rows_that_depend_on_their_batch_are_named():
    policy = zoo_policy("llama")
    for layer in policy.model.model.layers:
        layer.self_attn.is_causal = False  # so that padding is seen
    rows = sampled_rows(zoo_policy("llama"))
    forward = PolicyForward(policy.model, temperature=TEMPERATURE, packing=False)
    assert "a row's values depend on the other rows" in cause(forward, rows)


def test_differences_that_are_rounding_alone_are_called_that():
    policy = zoo_policy("llama")
    rows = sampled_rows(policy)
    rows.batch.rollout_logprob_BT.sub_(0.2)  # an update since then: what was measured before it counts
    forward = PolicyForward(policy.model, temperature=TEMPERATURE)
    assert "which is rounding" in cause(forward, rows, mean=1e-7, bound=1e-9)
    assert "which is rounding" not in cause(forward, rows, mean=0.2, bound=1e-9)


def test_the_cause_is_part_of_the_error_and_found_only_then():
    asked = []

    def find(mean, bound):
        asked.append((mean, bound))
        return "so the engine disagrees"

    measured = {"mismatch/logprob_mean": 0.002, "mismatch/logprob_max": 0.1}
    check_mismatch(measured, 0.01, 3, find)
    check_mismatch(measured, None, 3, find)
    assert asked == []
    with pytest.raises(
        EngineError, match=r"step 3: .*max_mismatch=0\.001; so the engine disagrees; the last"
    ):
        check_mismatch(measured, 0.001, 3, find)
