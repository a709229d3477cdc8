"""What a method says about a run that it is used in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atrium.config.compose import compose
from atrium.method.needs import Use

LAGGED = Use(
    num_updates_per_batch=4,
    group_size=8,
    sampled_elsewhere="rollout.lag=1",
    dtype="bfloat16",
    max_length=3_000,
)


@pytest.mark.parametrize(
    ("changes", "is_noted"),
    [
        ({}, True),
        ({"dtype": "float32"}, False),
        ({"max_length": 100_000}, False),  # the mean of more tokens is less noisy than the window is wide
        ({"sampled_elsewhere": None}, False),  # the trainer is compared with itself
        ({"sampled_elsewhere": None, "behavior_logprobs": "engine"}, True),
        ({"behavior_logprobs": "recompute"}, False),
    ],
)
def test_a_window_narrower_than_rounding_is_noted_where_engine_and_trainer_meet(changes, is_noted):
    notes = compose(["algorithm=gspo"]).method.notes(replace(LAGGED, **changes))
    assert [note for note in notes if "0.00037 nats on sequences of 3,000 tokens" in note] == notes
    assert bool(notes) is is_noted
    assert compose(["algorithm=grpo"]).method.notes(replace(LAGGED, **changes)) == []


def test_the_remedy_for_a_method_that_asks_for_the_engine_is_another_precision():
    lines = ["algorithm=grpo", "divergence.delta=0.001", "algorithm.ratio.gate.anchor=rollout"]
    [note] = compose(lines).method.notes(replace(LAGGED, sampled_elsewhere=None))
    assert note.endswith(
        "0.02 nats per token, more than the window [0.999, 1.001] allows, so rounding alone cuts; "
        "compute.dtype=float32 rounds less"
    )
