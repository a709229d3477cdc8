"""Methods of 2026 against outputs of other trainers' functions on fixed tensors, in float64."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from atrium.method.advantages import Advantage
from atrium.method.algorithm import Algorithm
from atrium.method.batch import Batch, PolicyTokens, local_sum
from atrium.method.divergences import Divergence
from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.method.regularizers import KLPenalty, Regularizer

PLACES = [parent / "shared" / "reports" / "vectors-2026" for parent in Path(__file__).resolve().parents]
VECTORS = next((place for place in PLACES if place.is_dir()), PLACES[0])
pytestmark = pytest.mark.skipif(
    not VECTORS.is_dir(), reason="the recorded outputs of other trainers are absent"
)

ROLLOUT = {"gate": {"anchor": "rollout"}, "weight": {"anchor": "rollout"}}
PROXIMAL = {"gate": {"anchor": "proximal"}, "weight": {"anchor": "proximal"}}
REDUCTIONS = {
    "token-mean": {"kind": "token_mean"},
    "seq-mean-token-mean": {"kind": "sequence_mean_token_mean"},
    "seq-mean-token-sum": {"kind": "sequence_mean_token_sum"},
    "seq-mean-token-sum-norm": {"kind": "sequence_mean_token_sum", "constant": 64.0},
}


@cache
def inputs():
    with np.load(VECTORS / "inputs.npz") as arrays:
        return {name: torch.tensor(arrays[name]) for name in arrays.files}


@cache
def records(peer):
    with np.load(VECTORS / f"{peer}.npz") as arrays:
        outputs = {name: torch.tensor(arrays[name]) for name in arrays.files}
    return json.loads((VECTORS / f"{peer}.json").read_text())["records"], outputs


def make_method(algorithm, divergence=None, kl=None):
    defaults = {
        "name": "peer",
        "advantage": {},
        "surrogate": {"kind": "clip"},
        "reduction": {"kind": "token_mean"},
        "on_policy": {"law": "exact"},
    }
    return Method(
        Algorithm.model_validate(defaults | algorithm),
        Divergence.build(**divergence or {"kind": "none"}),
        Regularizer(kl=kl),
    )


def total_variation(delta):
    return {"kind": "binary_total_variation", "delta_low": delta, "delta_high": delta}


def squared(coefficient, anchor):
    return KLPenalty(estimator="k2", coefficient=coefficient, anchor=anchor, placement="loss")


def ipo(config):
    kl = squared(2.0 * config["kl_tau"], "rollout") if config["kl_tau"] else None
    algorithm = {"ratio": ROLLOUT, "surrogate": {"kind": "mask"}, "log_ratio_limit": None}
    return make_method(algorithm, total_variation(config["ipo_threshold"]), kl)


def quadratic(divergence):
    def of(config):
        reduction = REDUCTIONS[config["loss_agg_mode"]]
        algorithm = {"ratio": ROLLOUT, "surrogate": {"kind": "quadratic"}, "reduction": reduction}
        return make_method(algorithm, divergence(config["drpo_epsilon"]))

    return of


def cppo(config):
    budget = {
        "kind": "prefix_budget",
        "of": total_variation(config["delta"]),
        "w_min": config["w_min"],
        "prefix_delta": config["delta_b"],
        "quantile": config["quantile"],
    }
    return make_method({"ratio": ROLLOUT}, budget)


def kimi(config):
    reduction = REDUCTIONS[config["loss_agg_mode"]]
    algorithm = {"ratio": PROXIMAL, "surrogate": {"kind": "reinforce"}, "reduction": reduction}
    return make_method(algorithm, kl=squared(config["kimi15_tau"], "proximal"))


def weight_clip(config):
    reduction = REDUCTIONS[config["loss_agg_mode"]]
    algorithm = {"ratio": PROXIMAL, "surrogate": {"kind": "weight_clip"}, "reduction": reduction}
    window = {"kind": "window", "lower": config["tis_lower_bound"], "upper": config["tis_upper_bound"]}
    return make_method(algorithm, window)


def corrected(kind, below, above):
    def of(config):
        bounds = {below: config["tis_clip_low"], above: config["tis_clip"]}
        algorithm = {"ratio": PROXIMAL, "correction": [{"kind": kind, "policy": "proximal", **bounds}]}
        clip = {"epsilon_low": config["eps_clip"], "epsilon_high": config["eps_clip_high"]}
        return make_method(algorithm, {"kind": "asymmetric_ratio", **clip})

    return of


METHODS = {
    ("prime_rl", "ipo"): ipo,
    ("unirl", "drpo"): quadratic(total_variation),
    ("unirl", "spo_fixed"): quadratic(lambda epsilon: {"kind": "ratio", "delta": epsilon}),
    ("unirl", "cppo"): cppo,
    ("roll", "kimi15"): kimi,
    ("roll", "weight_clip_interval"): weight_clip,
    ("slime", "truncation_with_floor"): corrected("truncated_importance", "lower", "cap"),
    ("slime", "icepop"): corrected("masked_importance", "lower", "upper"),
}


def make_batch(case, advantage_factor=1.0):
    given = {name: inputs()[f"{case}/{name}"] for name in ("log_prob", "old_log_prob", "rollout_log_prob")}
    mask_BT, advantage_B = inputs()[f"{case}/mask"].bool(), inputs()[f"{case}/adv_seq"]
    batch = Batch(
        mask_BT=mask_BT,
        reward_B=inputs()[f"{case}/rewards"].double(),
        group_B=inputs()[f"{case}/group"].long(),
        sample_key_B=torch.arange(len(mask_BT)),
        rollout_logprob_BT=given["rollout_log_prob"],
        behavior_logprob_BT=given["old_log_prob"],
        proximal_logprob_BT=given["old_log_prob"],
        advantage_BT=advantage_factor * advantage_B[:, None] * mask_BT,
        is_trained_B=torch.ones(len(mask_BT), dtype=torch.bool),
    )
    return batch, given["log_prob"].clone().requires_grad_()


@pytest.mark.parametrize(("peer", "name"), METHODS)
def test_gradients_are_those_of_the_peers_function(peer, name):
    found, outputs = records(peer)
    found = [record for record in found if record["method"] == name]
    assert len(found) >= 24
    for record in found:
        config = record["config"]
        objective = Objective(METHODS[peer, name](config))
        batch, logprob_BT = make_batch(record["case"], config.get("adv_tau", 1.0))
        prepared = objective.prepare(batch, None, objective.initial_state())
        objective.loss(batch, PolicyTokens(logprob_BT=logprob_BT), prepared).loss.backward()
        counts_empty_rows = peer == "roll" or config.get("loss_agg_mode") == "seq-mean-token-sum-norm"
        share = batch.mask_BT.any(dim=1).double().mean() if counts_empty_rows else 1.0
        expected_BT = outputs[f"{record['id']}/grad_log_prob"]
        torch.testing.assert_close(
            logprob_BT.grad * share, expected_BT, rtol=1e-6, atol=1e-6, msg=record["id"]
        )


def skyrl_corrections(config):
    """SkyRL's corrections with its default bounds; the outlier mask's are 0.8 and 1 / 0.8."""

    def masked(level, lower, upper):
        bounds = {"lower": lower, "upper": upper, "keep_weight": False}
        return {"kind": "masked_importance", "policy": "proximal", "level": level, **bounds}

    steps = []
    if (high := config.get("outlier_token_is_threshold_high")) is not None:
        outlier = {"estimator": "k2", "over": "maximum", "bound": math.log(high) ** 2 / 2.0}
        steps.append({"kind": "sequence_rejection", "policy": "proximal", **outlier})
    if (low := config.get("token_mask_is_threshold_low")) is not None:
        steps.append(masked("token", low, config["token_mask_is_threshold_high"]))
    bands = {"geometric": ("sequence_mean", 0.99, 1.01), "product": ("sequence", 0.5, 2.0)}
    if (metric := config.get("sequence_mask_metric")) is not None:
        steps.append(masked(*bands[metric]))
    level = config["tis_ratio_type"]
    weight = {"kind": "truncated_importance", "policy": "proximal", "level": level}
    steps.append(weight | {"cap": {"token": 2.0, "sequence": 5.0}[level]})
    reduction = {"kind": "sequence_mean_token_sum"}
    return make_method(
        {"ratio": PROXIMAL, "correction": steps, "reduction": reduction},
        {"kind": "ratio", "delta": config["clip"]},
    )


def test_gradients_are_those_of_skyrls_corrections():
    found, outputs = records("skyrl")
    found = [record for record in found if record["method"] == "corrections_in_a_row"]
    assert len(found) == 40
    deviating = []
    for record in found:
        config, objective = record["config"], Objective(skyrl_corrections(record["config"]))
        batch, logprob_BT = make_batch(record["case"])
        prepared = objective.prepare(batch, None, objective.initial_state())
        objective.loss(batch, PolicyTokens(logprob_BT=logprob_BT), prepared).loss.backward()
        gradient_BT = logprob_BT.grad * batch.mask_BT.any(dim=1).sum()  # SkyRL adds completions up
        expected_BT = outputs[f"{record['id']}/grad_log_prob"]
        same_B = torch.ones(len(gradient_BT), dtype=torch.bool)
        if "token_mask_is_threshold_low" in config and "sequence_mask_metric" in config:
            # SkyRL takes the geometric mean over the tokens that the token mask leaves, Atrium over all.
            log_BT = (batch.proximal_logprob_BT - batch.rollout_logprob_BT).where(batch.mask_BT, 0.0)
            left_BT = batch.mask_BT & (log_BT >= math.log(0.9)) & (log_BT <= math.log(1.1))
            means = [
                (log_BT * of_BT).sum(dim=1) / of_BT.sum(dim=1).clamp(min=1)
                for of_BT in (batch.mask_BT, left_BT)
            ]
            inside = [(mean_B >= math.log(0.99)) & (mean_B <= math.log(1.01)) for mean_B in means]
            same_B = inside[0] == inside[1]
        torch.testing.assert_close(
            gradient_BT[same_B], expected_BT[same_B], rtol=1e-6, atol=1e-6, msg=record["id"]
        )
        if not torch.allclose(gradient_BT, expected_BT, rtol=1e-6, atol=1e-6):
            deviating.append(record["id"])
    assert deviating == ["skyrl-0018", "skyrl-0028"]


@pytest.mark.parametrize("peer", ["prime_rl", "skyrl"])
def test_advantages_of_max_rl_are_those_of_the_peers_function(peer):
    found, outputs = records(peer)
    for record in (one for one in found if one["method"] == "max_rl"):
        case, epsilon = record["case"], record["config"].get("epsilon", 0.0)
        mask_BT, group_B = inputs()[f"{case}/mask"].bool(), inputs()[f"{case}/group"].long()
        reward_B = inputs()[f"{case}/rewards"].double()
        batch = Batch(
            mask_BT=mask_BT,
            reward_B=reward_B,
            group_B=group_B,
            sample_key_B=torch.arange(len(mask_BT)),
            rollout_logprob_BT=torch.zeros(mask_BT.shape, dtype=torch.float64),
            behavior_logprob_BT=None,
            proximal_logprob_BT=None,
            is_trained_B=torch.ones(len(mask_BT), dtype=torch.bool),
        )
        advantage = Advantage(baseline="group_mean", scale="group_mean", epsilon=epsilon)
        computed_BT = advantage.compute(batch, None, local_sum)
        expected_BT = outputs[f"{record['id']}/{record['arrays'][0]}"].double()
        expected_BT = expected_BT if expected_BT.dim() == 2 else expected_BT[:, None] * mask_BT
        same_group = group_B[:, None] == group_B
        mean_B = (same_group * reward_B).sum(dim=1) / same_group.sum(dim=1)
        # SkyRL leaves a group of one its reward, and divides by means below 0.
        agrees_B = (same_group.sum(dim=1) > 1) & (mean_B > 0.0)
        assert agrees_B.any() or case == "adv_negative"
        torch.testing.assert_close(
            computed_BT[agrees_B], expected_BT[agrees_B], rtol=1e-6, atol=1e-6, msg=record["id"]
        )
