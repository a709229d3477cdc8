"""KL penalties as a list, with limits and other gradients, and the likelihood of right answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atrium.base.errors import ConfigError
from atrium.config.method_files import read_method
from atrium.method.objective import Objective
from atrium.method.regularizers import KLPenalty, PositiveNLL, Regularizer
from atrium.peers.trainers import UNKNOWN_USE

K3 = {"estimator": "k3", "coefficient": 0.3, "anchor": "behavior", "placement": "loss"}


def objective_of(compose_method, kl=None, nll=None, name="grpo"):
    regularizer = Regularizer.model_validate({"kl": kl, "nll": nll})
    return Objective(replace(compose_method(name), regularizer=regularizer))


def assert_same_gradient(first, second):
    torch.testing.assert_close(first.gradient_BT, second.gradient_BT, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(first.loss, second.loss, rtol=1e-11, atol=1e-14)


def test_a_list_of_one_penalty_is_the_penalty_to_the_bit(compose_method, make_case, step):
    alone, listed = (objective_of(compose_method, kl) for kl in (K3, [K3]))
    assert listed.method.same_as(alone.method)
    one, other = step(alone, make_case(1)), step(listed, make_case(1))
    assert torch.equal(one.gradient_BT, other.gradient_BT)
    assert torch.equal(one.loss, other.loss)
    assert Regularizer.model_validate({"kl": []}) == Regularizer()


@pytest.mark.parametrize("placement", ["loss", "weight"])
def test_penalties_of_a_list_add_up(compose_method, make_case, step, placement):
    case = make_case(2)
    terms = [K3 | {"placement": placement}, K3 | {"placement": placement, "estimator": "k2"}]
    alone = [step(objective_of(compose_method, term, name="reinforce"), case).gradient_BT for term in terms]
    both = step(objective_of(compose_method, terms, name="reinforce"), case).gradient_BT
    without = step(objective_of(compose_method, name="reinforce"), case).gradient_BT
    torch.testing.assert_close(both, alone[0] + alone[1] - without, rtol=1e-11, atol=1e-14)


def test_ujs_is_half_of_both_unnormalised_divergences(compose_method, make_case, step):
    halves = [K3 | {"estimator": name, "coefficient": 0.15} for name in ("ufkl", "urkl")]
    for anchor in ("behavior", "reference"):
        listed = objective_of(compose_method, [half | {"anchor": anchor} for half in halves])
        alone = objective_of(compose_method, K3 | {"estimator": "ujs", "anchor": anchor})
        assert_same_gradient(step(listed, make_case(3)), step(alone, make_case(3)))


def test_gradient_of_k2_with_the_value_of_k3_is_straight_through(compose_method, make_case, step):
    named = objective_of(compose_method, K3 | {"estimator": "k3_straight_through"})
    chosen = objective_of(compose_method, K3 | {"gradient": "k2"})
    assert_same_gradient(step(named, make_case(4)), step(chosen, make_case(4)))
    assert named.method.same_as(chosen.method)


def penalty_by_autograd(log_ratio_BT, formula, **settings):
    """The penalty's value and coefficient, and the derivative of the formula's sum."""
    x_BT = log_ratio_BT.clone().requires_grad_()
    formula(x_BT).sum().backward()
    ratio_BT = log_ratio_BT.exp()
    found = KLPenalty.model_validate(K3 | {"coefficient": 1.0} | settings).limited(
        log_ratio_BT, ratio_BT, torch.ones_like(ratio_BT)
    )
    return found, x_BT.grad


def test_value_limit_is_a_clamp_of_the_value_without_gradient_beyond():
    log_ratio_BT = torch.linspace(-60.0, 60.0, 241, dtype=torch.float64)[None]
    found, slope_BT = penalty_by_autograd(
        log_ratio_BT,
        lambda x: ((-x).clamp(-20, 20).exp() + x.clamp(-20, 20) - 1).clamp(-10, 10),
        value_limit=10.0,
    )
    torch.testing.assert_close(found.coefficient_BT, slope_BT, rtol=1e-9, atol=1e-12)
    assert found.value_BT.abs().max() == 10.0


@pytest.mark.parametrize("estimator", ["k1", "k1_absolute", "k3"])
def test_gradient_of_k2_leaves_the_value_alone(estimator):
    log_ratio_BT = torch.tensor([[-25.0, -0.3, 0.0, 0.4, 3.0]], dtype=torch.float64)
    found, slope_BT = penalty_by_autograd(
        log_ratio_BT, lambda x: 0.5 * x**2, estimator=estimator, gradient="k2", value_limit=10.0
    )
    own, _ = penalty_by_autograd(log_ratio_BT, lambda x: x, estimator=estimator, value_limit=10.0)
    assert torch.equal(found.coefficient_BT, slope_BT)
    assert torch.equal(found.value_BT, own.value_BT)


@pytest.mark.parametrize("level", ["token", "sequence_mean", "sequence"])
@pytest.mark.parametrize("correction", ["weight", "detached_weight"])
def test_weight_of_a_completion_is_differentiated_in_all_of_its_tokens(make_case, level, correction):
    batch, policy = (
        make_case(5, num_groups=2, spread=0.1).batch,
        make_case(5, num_groups=2, spread=0.1).policy,
    )
    settings = {"anchor": "reference", "correction": correction, "correction_level": level}
    penalty = KLPenalty.model_validate(K3 | {"coefficient": 1.0} | settings)
    logprob_BT = policy.logprob_BT.clone().requires_grad_()
    log_w_BT = torch.where(batch.mask_BT, logprob_BT - batch.behavior_logprob_BT, 0.0)
    num_B1 = batch.mask_BT.sum(dim=1, keepdim=True)
    total_B1 = log_w_BT.sum(dim=1, keepdim=True)
    w_BT = {"token": log_w_BT, "sequence_mean": total_B1 / num_B1, "sequence": total_B1}[level].exp()
    x_BT = logprob_BT - batch.reference_logprob_BT
    value_BT = (w_BT if correction == "weight" else w_BT.detach()) * ((-x_BT).exp() - 1 + x_BT)
    torch.where(batch.mask_BT, value_BT, 0.0).sum().backward()
    found = penalty.penalize(policy.logprob_BT, batch, None)
    mask_BT = batch.mask_BT
    torch.testing.assert_close(found.value_BT[mask_BT], value_BT.detach()[mask_BT], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(
        found.coefficient_BT[mask_BT], logprob_BT.grad[mask_BT], rtol=1e-10, atol=1e-13
    )


def test_likelihood_of_right_answers_is_the_mean_over_their_tokens(compose_method, make_case, step):
    case = make_case(6, reward_B=torch.tensor([1.0, 0.0, 0.5, 0.0] * 4, dtype=torch.float64))
    with_term = step(objective_of(compose_method, nll={"coefficient": 0.1}), case)
    without = step(objective_of(compose_method), case)
    right_BT = case.batch.mask_BT & (case.batch.reward_B > 0.0)[:, None]
    assert 0 < right_BT.sum() < case.batch.mask_BT.sum()
    expected_BT = -0.1 * right_BT.double() / right_BT.sum()
    torch.testing.assert_close(
        with_term.gradient_BT - without.gradient_BT, expected_BT, rtol=1e-9, atol=1e-13
    )
    expected = -0.1 * case.policy.logprob_BT[right_BT].mean()
    torch.testing.assert_close(with_term.loss - without.loss, expected, rtol=1e-9, atol=1e-12)


def test_likelihood_of_right_answers_counts_the_minibatch_of_all_ranks(make_case, over_ranks):
    batch, nll = make_case(7).batch, PositiveNLL(coefficient=0.1)
    whole_B = nll.row_factor(batch, lambda value: value)
    halves = [batch.select(torch.arange(16)[part]) for part in (slice(0, 4), slice(4, 16))]
    runs = [lambda add, half=half: nll.row_factor(half, add) for half in halves]
    torch.testing.assert_close(torch.cat(over_ranks(runs)), whole_B, rtol=1e-12, atol=0.0)
    wrong = replace(batch, reward_B=torch.zeros_like(batch.reward_B))
    assert not nll.row_factor(wrong, lambda value: value).any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"correction_level": "sequence"}, ["correction_level=sequence", "regularizer.kl.correction=none"]),
        ({"gradient": "k2", "estimator": "ufkl"}, ["gradient=k2", "got ufkl"]),
        ({"gradient": "k2", "estimator": "k2"}, ["gradient=k2", "got k2"]),
    ],
)
def test_settings_of_a_penalty_without_effect_are_refused(settings, words):
    text = ", ".join(f"{key}: {value}" for key, value in (K3 | settings).items())
    method = read_method("grpo", [f"regularizer.kl=[{{{text}}}]"])
    with pytest.raises(ConfigError) as caught:
        method.check(UNKNOWN_USE)
    assert all(word in str(caught.value) for word in words)
