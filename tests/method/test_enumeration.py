"""Estimators, RPG and GVPO against the truth, by enumerating all completions of a tabular policy.

A row per completion, weighted by its probability under the sampler through the row's factor, turns a batch
into an exact expectation. V is the vocabulary, T the length; T = 2 is autoregressive.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from atrium.method.advantages import Advantage
from atrium.method.objective import Objective
from atrium.method.reductions import GroupUnbiasedTokenSum
from atrium.method.regularizers import KLPenalty
from atrium.method.reward_regression import ImplicitRewardRegression
from atrium.theory.expectations import enumerated, group_loss, unclipped
from atrium.theory.testbed import Tabular, kl, relative_error

VOCABULARY = 3


def rewards(num_tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(99)
    return torch.rand(VOCABULARY**num_tokens, generator=generator, dtype=torch.float64)


def gradient_and_value(chosen, policy, **kwargs):
    """The expected objective's gradient and value (the loss with its sign turned)."""
    loss = chosen.loss(*enumerated(policy, **kwargs)).loss
    return -policy.gradient(loss), -loss.item()


REVERSE, FORWARD = ("rkl", "urkl"), ("fkl", "ufkl")


def regularized_return_gradient(policy, behavior, beta, estimator, num_tokens):
    """The gradient of E_policy[R] - beta KL, the KL's direction being the estimator's."""
    current_B, old_B = policy.logprob_B(), behavior.logprob_B().detach()
    divergence = kl(old_B, current_B) if estimator in FORWARD else kl(current_B, old_B)
    return policy.gradient((current_B.exp() * rewards(num_tokens)).sum() - beta * divergence)


RPG_FORMS = [("pathwise", "loss"), ("score", "weight"), ("score", "loss")]


@pytest.mark.parametrize("num_tokens", [1, 2])
@pytest.mark.parametrize("estimator", [*FORWARD, *REVERSE])
@pytest.mark.parametrize(("form", "placement"), RPG_FORMS)
def test_every_form_of_rpg_has_the_exact_gradient_at_sequence_level(num_tokens, estimator, form, placement):
    behavior = Tabular.random(0, num_tokens)
    policy = behavior.near(1, 0.7).trainable()
    beta = 0.3
    penalty = KLPenalty(
        estimator=estimator, coefficient=beta, anchor="behavior", placement=placement, level="sequence"
    )
    chosen = unclipped(kl=penalty, gradient=form)
    found, _ = gradient_and_value(chosen, policy, behavior=behavior, advantage_B=rewards(num_tokens))
    truth = regularized_return_gradient(policy, behavior, beta, estimator, num_tokens)
    torch.testing.assert_close(found, truth, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("estimator", [*FORWARD, *REVERSE])
def test_rpg_at_token_level_is_biased_for_longer_sequences(estimator):
    behavior = Tabular.random(0, 2)
    policy = behavior.near(1, 0.7).trainable()
    penalty = KLPenalty(estimator=estimator, coefficient=0.3, anchor="behavior", placement="loss")
    chosen = unclipped(kl=penalty, level="token")
    found, _ = gradient_and_value(chosen, policy, behavior=behavior, advantage_B=rewards(2))
    assert relative_error(found, regularized_return_gradient(policy, behavior, 0.3, estimator, 2)) > 0.02


def penalty_of(policy, *, behavior, reference, estimator, correction="none", level="sequence"):
    """Gradient and value of a KL penalty alone, with no advantage beside it."""
    penalty = KLPenalty(
        estimator=estimator,
        coefficient=1.0,
        anchor="reference",
        placement="loss",
        correction=correction,
        level=level,
    )
    no_advantage_B = torch.zeros(len(policy.logprob_B()), dtype=torch.float64)
    found, value = gradient_and_value(
        unclipped(kl=penalty), policy, behavior=behavior, reference=reference, advantage_B=no_advantage_B
    )
    return -found, -value


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_k1_k2_and_k3_on_policy_have_the_known_values_and_gradients(num_tokens):
    policy = Tabular.random(2, num_tokens).trainable()
    reference = policy.near(3, 0.6)
    current_B, anchor_B = policy.logprob_B(), reference.logprob_B().detach()
    reverse, forward = kl(current_B, anchor_B), kl(anchor_B, current_B)
    of_reverse, of_forward = policy.gradient(reverse), policy.gradient(kl(anchor_B, policy.logprob_B()))
    found = {
        name: penalty_of(policy, behavior=policy, reference=reference, estimator=name)
        for name in ("k1", "k2", "k3", "k3_straight_through")
    }
    for unbiased in ("k1", "k3", "k3_straight_through"):
        assert found[unbiased][1] == pytest.approx(reverse.item(), rel=1e-12)
    assert abs(found["k2"][1] / reverse.item() - 1) > 1e-3
    assert found["k1"][0].abs().max() < 1e-15
    torch.testing.assert_close(found["k2"][0], of_reverse, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(found["k3_straight_through"][0], of_reverse, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(found["k3"][0], of_forward, rtol=1e-11, atol=1e-14)
    assert relative_error(of_forward, of_reverse) > 0.01
    assert forward.item() != pytest.approx(reverse.item(), rel=1e-3)


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_off_policy_estimators_are_exact_with_the_right_correction_only(num_tokens):
    behavior = Tabular.random(4, num_tokens)
    policy = behavior.near(5, 0.6).trainable()
    reference = behavior.near(6, 0.6)
    anchor_B = reference.logprob_B().detach()
    reverse = kl(policy.logprob_B(), anchor_B)
    of_reverse = policy.gradient(kl(policy.logprob_B(), anchor_B))
    of_forward = policy.gradient(kl(anchor_B, policy.logprob_B()))

    def run(estimator, correction):
        return penalty_of(
            policy, behavior=behavior, reference=reference, estimator=estimator, correction=correction
        )

    for estimator in ("k1", "k3"):
        gradient, value = run(estimator, "weight")
        assert value == pytest.approx(reverse.item(), rel=1e-11)
        torch.testing.assert_close(gradient, of_reverse, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(run("k2", "detached_weight")[0], of_reverse, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(
        run("k3_straight_through", "detached_weight")[0], of_reverse, rtol=1e-11, atol=1e-14
    )
    torch.testing.assert_close(run("k3", "detached_weight")[0], of_forward, rtol=1e-11, atol=1e-14)
    for wrong in (
        ("k3", "none"),
        ("k3", "detached_weight"),
        ("k2", "none"),
        ("k2", "weight"),
        ("k1", "none"),
    ):
        assert relative_error(run(*wrong)[0], of_reverse) > 0.01, wrong


@pytest.mark.parametrize("distance", [0.0, 0.5])
def test_token_level_kl_is_biased_even_on_policy_and_its_sequence_level_is_exact(distance):
    errors: dict[str, list[float]] = {"token": [], "sequence": []}
    for seed in range(6):
        behavior = Tabular.random(100 + seed, 2)
        policy = behavior.near(200 + seed, distance).trainable()
        reference = behavior.near(300 + seed, 0.6)
        truth = policy.gradient(kl(policy.logprob_B(), reference.logprob_B().detach()))
        for level, found in errors.items():
            gradient, _ = penalty_of(
                policy,
                behavior=behavior,
                reference=reference,
                estimator="k3",
                correction="weight",
                level=level,
            )
            found.append(relative_error(gradient, truth))
    assert max(errors["sequence"]) < 1e-11
    assert sum(errors["token"]) / 6 > 0.05


@pytest.mark.parametrize(("level", "exact"), [("token", False), ("sequence", True)])
def test_the_importance_weight_of_the_sequence_gives_the_true_policy_gradient(level, exact):
    behavior = Tabular.random(7, 2)
    policy = behavior.near(8, 0.7).trainable()
    found, _ = gradient_and_value(unclipped(level=level), policy, behavior=behavior, advantage_B=rewards(2))
    truth = policy.gradient((policy.logprob_B().exp() * rewards(2)).sum())
    error = relative_error(found, truth)
    assert error < 1e-12 if exact else error > 0.02


def test_presets_that_declare_an_expectation_law_keep_it(presets, compose_method):
    """At w = 1 their gradient is REINFORCE's in expectation, though not sample by sample."""
    names = [name for name in presets if compose_method(name).algorithm.on_policy.law == "expectation"]
    assert {"rpg_fkl", "rpg_rkl"} <= set(names)
    for name, num_tokens in itertools.product(names, (1, 2)):
        policy = Tabular.random(9, num_tokens).trainable()
        advantage_B = rewards(num_tokens) - 0.4
        batch, tokens, prepared = enumerated(policy, behavior=policy, advantage_B=advantage_B)
        loss = compose_method(name).objective.loss(batch, tokens, prepared).loss
        truth = policy.gradient((policy.logprob_B().exp() * advantage_B).sum())
        torch.testing.assert_close(-policy.gradient(loss), truth, rtol=1e-11, atol=1e-13)


# GVPO: expectations over groups are sums over all pairs (k = 2) or triples of completions.


def gvpo_loss(policy, *, anchor, sampler_B, beta, group_size, num_tokens):
    """The expected loss over all groups of `group_size` completions, drawn independently by the sampler."""
    chosen = unclipped().method.with_parts(
        surrogate=ImplicitRewardRegression(beta=beta),
        reduction=GroupUnbiasedTokenSum(),
        advantage=Advantage(baseline="group_mean"),
    )
    return group_loss(
        Objective(chosen),
        policy,
        behavior=anchor,
        reward_B=rewards(num_tokens),
        sampler_B=sampler_B,
        group_size=group_size,
    )


def samplers(anchor: Tabular) -> list[torch.Tensor]:
    count = len(anchor.logprob_B())
    generator = torch.Generator().manual_seed(11)
    random_B = torch.rand(count, generator=generator, dtype=torch.float64) + 0.05
    return [
        anchor.logprob_B().exp(),
        torch.full((count,), 1 / count, dtype=torch.float64),
        random_B / random_B.sum(),
    ]


@pytest.mark.parametrize("group_size", [2, 3])
def test_gvpo_is_the_variance_of_the_distance_to_its_optimum_for_every_sampler(group_size):
    """Theorems 1 and 2: the loss is beta^2 / 2 Var(log pi - log pi*), 0 only at pi* ~ pi' exp(R / beta)."""
    anchor, beta = Tabular.random(12, 1), 0.4
    optimum_B = (anchor.logprob_B() + rewards(1) / beta).log_softmax(dim=0)
    for sampler_B, seed in itertools.product(samplers(anchor), (13, 14)):
        policy = Tabular.random(seed, 1).trainable()
        distance_B = policy.logprob_B() - optimum_B
        mean = (sampler_B * distance_B).sum()
        variance = (sampler_B * (distance_B - mean) ** 2).sum()
        loss = gvpo_loss(
            policy, anchor=anchor, sampler_B=sampler_B, beta=beta, group_size=group_size, num_tokens=1
        )
        assert loss.item() == pytest.approx(0.5 * beta**2 * variance.item(), rel=1e-11)
        truth = policy.gradient(0.5 * beta**2 * variance)
        torch.testing.assert_close(policy.gradient(loss), truth, rtol=1e-10, atol=1e-14)
        best = Tabular((optimum_B.clone(),)).trainable()
        at_best = gvpo_loss(
            best, anchor=anchor, sampler_B=sampler_B, beta=beta, group_size=group_size, num_tokens=1
        )
        assert at_best.item() == pytest.approx(0.0, abs=1e-25)
        assert best.gradient(at_best).abs().max() < 1e-14


def test_gvpo_finds_its_optimum_over_whole_sequences():
    anchor, beta = Tabular.random(15, 2), 0.5
    optimum_B = (anchor.logprob_B() + rewards(2) / beta).log_softmax(dim=0)
    policy = anchor.trainable()
    optimizer = torch.optim.LBFGS(policy.logits, max_iter=300, tolerance_grad=1e-12, tolerance_change=1e-16)
    sampler_B = samplers(anchor)[2].detach()

    def closure():
        optimizer.zero_grad()
        loss = gvpo_loss(policy, anchor=anchor, sampler_B=sampler_B, beta=beta, group_size=2, num_tokens=2)
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(policy.logprob_B().detach(), optimum_B, rtol=0.0, atol=1e-6)


def test_gvpo_at_its_anchor_is_reinforce_times_beta_over_k_minus_1(make_case, compose_method, step):
    case = make_case(16).on_policy()
    method = compose_method("gvpo")
    result = step(method.objective, case)
    reward_B = case.batch.reward_B.reshape(4, 4)
    centred_B = (reward_B - reward_B.mean(dim=1, keepdim=True)).flatten()
    beta, num_groups, group_size = method.algorithm.surrogate.beta, 4, 4
    expected_BT = -beta / (group_size - 1) / num_groups * centred_B[:, None] * case.batch.mask_BT
    torch.testing.assert_close(result.gradient_BT, expected_BT, rtol=1e-12, atol=1e-15)


def test_gvpo_gradient_is_its_weights_times_grad_log_pi_and_they_sum_to_zero(make_case, compose_method, step):
    case = make_case(17)
    beta = 0.1
    result = step(compose_method("gvpo").objective, case)
    log_ratio_BT = case.policy.logprob_BT - case.batch.behavior_logprob_BT
    log_ratio_B = torch.where(case.batch.mask_BT, log_ratio_BT, 0.0).sum(dim=1).reshape(4, 4)
    reward_B = case.batch.reward_B.reshape(4, 4)
    weight_B = reward_B - reward_B.mean(1, True) - beta * (log_ratio_B - log_ratio_B.mean(1, True))
    assert weight_B.sum(dim=1).abs().max() < 1e-13
    expected_BT = -beta / 3 / 4 * weight_B.flatten()[:, None] * case.batch.mask_BT
    torch.testing.assert_close(result.gradient_BT, expected_BT, rtol=1e-12, atol=1e-15)


GVPO_MASKED_ROWS = {
    "one of four": [1],
    "two of four": [4, 7],
    "all but one": [9, 10, 11],
    "all": [12, 13, 14, 15],
}


def masked_case(make_case, rows):
    """A case whose given rows have no trained token."""
    case = make_case(18)
    mask_BT = case.batch.mask_BT.clone()
    mask_BT[rows] = False
    return replace(case, batch=replace(case.batch, mask_BT=mask_BT))


@pytest.mark.parametrize("rows", GVPO_MASKED_ROWS.values(), ids=GVPO_MASKED_ROWS)
def test_gvpo_means_run_over_the_rows_with_trained_tokens(make_case, compose_method, step, rows):
    case, beta = masked_case(make_case, rows), 0.1
    mask_BT = case.batch.mask_BT
    log_ratio_BT = case.policy.logprob_BT - case.batch.behavior_logprob_BT
    log_ratio_B = torch.where(mask_BT, log_ratio_BT, 0.0).sum(dim=1)
    distance_B = case.batch.reward_B - beta * log_ratio_B
    expected_B = torch.zeros_like(distance_B)
    groups = [range(first, first + 4) for first in range(0, 16, 4)]
    counted = [[row for row in group if mask_BT[row].any()] for group in groups]
    for kept in counted:
        if len(kept) > 1:
            expected_B[kept] = (distance_B[kept] - distance_B[kept].mean()) / (len(kept) - 1)
    num_groups = sum(bool(kept) for kept in counted)
    expected_BT = -beta / num_groups * expected_B[:, None] * mask_BT
    found_BT = step(compose_method("gvpo").objective, case).gradient_BT
    torch.testing.assert_close(found_BT, expected_BT, rtol=1e-12, atol=1e-15)
    first_B = torch.stack(
        [row[mask].sum() / mask.sum().clamp(min=1) for row, mask in zip(found_BT, mask_BT, strict=True)]
    )
    assert first_B.reshape(4, 4).sum(dim=1).abs().max() < 1e-12


def test_gvpo_ignores_rewards_and_log_probabilities_of_masked_rows(make_case, compose_method, step):
    case, objective = masked_case(make_case, [1, 4, 7]), compose_method("gvpo").objective
    reward_B = case.batch.reward_B.clone()
    reward_B[[1, 4, 7]] += 5.0
    other = replace(case, batch=replace(case.batch, reward_B=reward_B)).poisoned()
    torch.testing.assert_close(
        step(objective, other).gradient_BT, step(objective, case).gradient_BT, rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("name", ["grpo", "atr", "dr_grpo", "dapo"])
def test_other_methods_keep_masked_rows_in_the_mean_of_rewards(make_case, compose_method, name):
    """TRL and verl do the same: a masked completion still counts in its group's mean reward."""
    case, objective = masked_case(make_case, [1]), compose_method(name).objective
    whole_BT = objective.with_advantages(make_case(18).batch).advantage_BT
    masked_BT = objective.with_advantages(case.batch).advantage_BT
    assert torch.equal(masked_BT[0], whole_BT[0])
    assert not masked_BT[1].any()
