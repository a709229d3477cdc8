"""Combinations that cannot work or have no effect: one line that names both settings and what to choose."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from atrium.base.errors import ConfigError
from atrium.method.needs import Use

REGRESSION = "algorithm.surrogate={kind:implicit_reward_regression,beta:0.1,gradient:pathwise}"
CASES = [
    # preset, overrides, settings named in the message
    ("grpo", [], {"group_size": 1}, ["rollout.group_size=1", "algorithm.advantage.baseline"]),
    ("gvpo", [], {"group_size": 1}, ["rollout.group_size=1"]),
    (
        "gvpo",
        ["algorithm.ratio.weight.level=token"],
        {},
        ["implicit_reward_regression", "weight.level=token"],
    ),
    ("gvpo", ["algorithm.advantage.baseline=none"], {}, ["advantage.baseline=none", "no effect"]),
    ("gvpo", ["+algorithm.advantage.offset=0.1"], {}, ["offset=0.1", "choose baseline=group_mean"]),
    ("gvpo", ["divergence=kl3"], {}, ["divergence.kind=kl3", "implicit_reward_regression"]),
    ("reinforce", ["divergence=ratio"], {}, ["divergence.kind=ratio", "algorithm.ratio.gate.level=none"]),
    ("reinforce", ["algorithm.surrogate.gradient=pathwise"], {}, ["weight.level=none", "gradient=score"]),
    ("sapo", ["divergence=kl3"], {}, ["divergence.kind=kl3", "algorithm.surrogate.kind=soft_gate"]),
    ("vespo", ["divergence=chi2"], {}, ["divergence.kind=chi2", "algorithm.surrogate.kind=gamma_weight"]),
    ("topr", ["algorithm.ratio.weight.level=none"], {}, ["signed_weight_clip", "weight.level=none"]),
    ("spo", ["divergence=none"], {}, ["algorithm.surrogate.kind=quadratic", "divergence=none"]),
    ("spo", ["divergence=sequence_mean"], {}, ["divergence.kind=sequence_mean", "choose"]),
    ("spo", ["divergence=window", "divergence.upper=1.0"], {}, ["divergence.upper=1", "quadratic"]),
    (
        "cispo",
        ["divergence=state_kl"],
        {},
        ["algorithm.surrogate.kind=weight_clip", "divergence.kind=state_kl"],
    ),
    (
        "gspo",
        ["divergence=binary_kl"],
        {},
        ["divergence.kind=binary_kl", "algorithm.ratio.gate.level=sequence_mean"],
    ),
    (
        "gmpo",
        ["algorithm.ratio.gate.level=sequence_mean"],
        {},
        ["order=clip_then_mean", "gate.level=sequence_mean"],
    ),
    (
        "gmpo",
        ["divergence=none", "algorithm.surrogate.kind=none"],
        {},
        ["order=clip_then_mean", "surrogate.kind=clip, got none"],
    ),
    (
        "gmpo",
        ["+algorithm.ratio.weight.anchor=proximal"],
        {},
        ["order=clip_then_mean", "equal anchors, got behavior and proximal"],
    ),
    ("dppo_binary_tv", ["algorithm.surrogate.gradient=pathwise"], {}, ["weight.cap=20.0", "gradient=score"]),
    ("bapo", ["divergence.lower=0.95"], {}, ["divergence.lower=0.95", "divergence.lower_max=0.9"]),
    (
        "kl_cov",
        ["regularizer=none"],
        {},
        ["algorithm.token_weight.kind=kl_cov", "regularizer.kl.placement=loss"],
    ),
    ("clip_cov", ["algorithm.token_weight.lower=7.0"], {}, ["token_weight.lower=7", "token_weight.upper=5"]),
    (
        "grpo",
        ["regularizer=paper/k3_reference"],
        {},
        ["regularizer.kl.anchor=reference", "algorithm.reference.kind=frozen"],
    ),
    (
        "grpo_kl",
        ["regularizer=none"],
        {},
        ["algorithm.reference.kind=frozen", "regularizer.kl.anchor=reference"],
    ),
    (
        "rpg_ufkl",
        ["regularizer.kl.placement=reward"],
        {},
        ["regularizer.kl.placement=reward", "anchor=behavior"],
    ),
    ("rpg_ufkl", ["+regularizer.kl.correction=weight"], {}, ["correction=weight", "estimator=ufkl"]),
    ("rpg_ufkl", [], {"num_updates_per_batch": 1}, ["estimator=ufkl", "num_minibatches"]),
    ("gmpo", ["regularizer=paper/urkl_weight"], {}, ["regularizer.kl.placement=weight", "clip_then_mean"]),
    (
        "gvpo",
        ["regularizer=paper/urkl_weight"],
        {},
        ["regularizer.kl.placement=weight", "implicit_reward_regression"],
    ),
    (
        "grpo",
        ["+algorithm.group_filter={kind:skip}", "regularizer=entropy"],
        {},
        ["group_filter.kind=skip", "regularizer"],
    ),
    *(
        (preset_name, ["+algorithm.group_filter={kind:skip}"], {}, ["group_filter.kind=skip", trained_by])
        for preset_name, trained_by in (
            ("gvpo", "algorithm.surrogate.kind=implicit_reward_regression"),
            ("asymre", "algorithm.advantage.offset=-0.1"),
            ("reinforce_plus_plus_baseline", "algorithm.advantage.whiten=tokens"),
        )
    ),
    (
        "grpo",
        ["+algorithm.group_filter={kind:skip}", "algorithm.advantage.baseline=batch_mean"],
        {},
        ["group_filter.kind=skip", "algorithm.advantage.baseline=batch_mean"],
    ),
    ("dapo", ["algorithm.group_filter.kind=skip"], {}, ["judge=correctness", "kind=skip"]),
    ("dapo", ["algorithm.group_filter.kind=keep"], {}, ["judge=correctness", "kind=keep"]),
    ("grpo", ["+algorithm.group_filter={kind:keep,max_num_rounds:3}"], {}, ["max_num_rounds=3", "kind=keep"]),
    (
        "grpo",
        ["regularizer=entropy", "regularizer.entropy.step=0.01"],
        {},
        ["regularizer.entropy.step=0.01", "target"],
    ),
    (
        "grpo",
        ["+algorithm.correction={kind:masked_importance,lower:2.0,upper:1.0}"],
        {},
        ["algorithm.correction.lower=2", "algorithm.correction.upper=1"],
    ),
    ("grpo", ["++algorithm.advantage.discount=0.9"], {}, ["discount=0.9 has no effect", "returns=sequence"]),
    ("dr_grpo", ["++algorithm.advantage.ddof=0"], {}, ["ddof=0 has no effect", "scale=none"]),
    ("dr_grpo", ["++algorithm.advantage.epsilon=0.1"], {}, ["epsilon=0.1 has no effect", "scale=none"]),
    (
        "reinforce_plus_plus",
        ["++algorithm.advantage.ddof=0"],
        {},
        ["ddof=0 has no effect", "scale=none"],
    ),
    (
        "reinforce_plus_plus",
        ["+algorithm.advantage.offset=0.5"],
        {},
        ["offset=0.5 has no effect", "whiten=tokens"],
    ),
    (
        "reinforce_plus_plus",
        ["+regularizer.kl.correction=weight"],
        {},
        ["regularizer.kl.correction=weight has no effect", "regularizer.kl.placement=reward"],
    ),
    (
        "grpo",
        ["regularizer=entropy", "regularizer.entropy.coefficient=0.0"],
        {},
        ["regularizer.entropy.coefficient=0 has no effect", "null"],
    ),
]


def check(method, *, num_updates_per_batch=4, group_size=8):
    method.check(Use(num_updates_per_batch=num_updates_per_batch, group_size=group_size))


@pytest.mark.parametrize(("preset_name", "overrides", "loop", "named"), CASES)
def test_a_wrong_combination_is_one_line_that_names_both_settings(
    compose_method, preset_name, overrides, loop, named
):
    with pytest.raises(ConfigError) as caught:
        check(compose_method(preset_name, *overrides), **loop)
    message = str(caught.value)
    assert "\n" not in message
    for setting in named:
        assert setting in message
    assert "choose" in message or "give" in message


def test_every_preset_passes(presets, compose_method):
    for name in presets:
        check(compose_method(name))


SKIPPED = [
    # preset, overrides; whether equal rewards have no gradient, so that the groups may be left out
    *((name, (), True) for name in ("atr", "gspo", "dcpo", "vespo", "clip_cov", "lite_ppo", "reinforce")),
    ("grpo", ("algorithm.advantage.baseline=leave_one_out",), True),
    ("grpo", ("+algorithm.advantage.returns=token",), True),
    *((name, (), False) for name in ("gvpo", "asymre", "reinforce_plus_plus_baseline", "grpo_kl")),
    ("grpo", ("algorithm.advantage.baseline=batch_mean",), False),
    ("grpo", ("algorithm.advantage.baseline=none",), False),
]


@pytest.mark.parametrize(("preset_name", "overrides", "is_idle"), SKIPPED)
def test_groups_may_be_skipped_exactly_where_equal_rewards_have_no_gradient(
    compose_method, make_case, step, preset_name, overrides, is_idle
):
    skips = compose_method(preset_name, *overrides, "+algorithm.group_filter={kind:skip}")
    with nullcontext() if is_idle else pytest.raises(ConfigError, match="skip cannot be combined with"):
        check(skips)
    reward_B = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.5]).double()
    result = step(skips.objective, make_case(7, num_groups=3, reward_B=reward_B))
    assert bool((result.gradient_BT[:4] == 0.0).all()) is is_idle
    assert (result.gradient_BT[4:] != 0.0).any()


def test_one_update_per_batch_is_noted_where_a_trust_region_waits(compose_method):
    atr, reinforce = compose_method("atr"), compose_method("reinforce")
    once, twice = (Use(num_updates_per_batch=number, group_size=8) for number in (1, 2))
    assert "every ratio to it is 1" in atr.notes(once)[0]
    assert atr.notes(twice) == []
    assert reinforce.notes(once) == []
