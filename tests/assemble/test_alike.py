"""Warnings about arms that cannot differ, from their configurations."""

from __future__ import annotations

from atrium.assemble.alike import alike_notes
from atrium.config.compose import compose

ONCE = ("optimizer.num_minibatches=1", "optimizer.num_epochs=1")


def recorded(algorithm, *overrides):
    return compose([f"algorithm={algorithm}", *overrides]).model_dump(mode="json")


def test_two_methods_with_one_update_per_batch_are_noted():
    arms = {name: recorded(name, *ONCE) for name in ("grpo", "gspo", "reinforce")}
    assert alike_notes(arms) == [
        "grpo and gspo have identical gradients (one update per batch): "
        "with equal seeds their runs differ by rounding alone"
    ]


def test_several_updates_per_batch_are_not_noted():
    assert alike_notes({name: recorded(name) for name in ("grpo", "gspo")}) == []


def test_arms_that_differ_outside_of_their_methods_are_not_noted():
    arms = {"a": recorded("grpo", *ONCE), "b": recorded("gspo", *ONCE, "optimizer.learning_rate=0.01")}
    assert alike_notes(arms) == []


def test_seeds_of_one_method_and_arms_without_a_known_method_are_not_noted():
    arms = {"a": recorded("grpo", *ONCE), "b": recorded("grpo", "seed=1", *ONCE), "c": {}}
    assert alike_notes(arms) == []


def test_stale_rollouts_keep_methods_apart():
    arms = {name: recorded(name, *ONCE, "rollout.lag=1") for name in ("grpo", "gspo")}
    assert alike_notes(arms) == []
