"""Every surrogate against its published formula, written out and differentiated by autograd.

The formulas are functions of log pi alone, with `detach` where the paper stops the gradient; their gradient
must be the coefficient, and for pathwise forms their value the value.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from pydantic import ConfigDict

from atrium.method.advantages import Advantage
from atrium.method.algorithm import Algorithm, OnPolicy
from atrium.method.batch import Batch, PolicyTokens
from atrium.method.divergences import Divergence, ExplicitWindow
from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.method.ratios import Ratio, Ratios, WeightRatio
from atrium.method.reductions import SequenceMeanTokenMean, SequenceMeanTokenSum
from atrium.method.regions import Region
from atrium.method.regularizers import KLPenalty, Regularizer
from atrium.method.surrogates import Surrogate

LOWER, UPPER = 0.8, 1.28
WINDOW = ExplicitWindow(lower=LOWER, upper=UPPER)


def clipped(w, lower=LOWER, upper=UPPER):
    return w.clamp(lower, upper)


def clip(w, a, logp, r):
    return torch.minimum(w * a, clipped(w) * a)


def dual_clip(w, a, logp, r):
    return torch.where(a < 0, torch.maximum(clip(w, a, logp, r), 3.0 * a), clip(w, a, logp, r))


def two_sided_clip(w, a, logp, r):
    return torch.minimum(w.clamp(max=1.1) * a, clipped(w) * a)


def mask(w, a, logp, r):
    return torch.where((w >= LOWER) & (w <= UPPER), w * a, 0.0)


def soft_gate(w, a, logp, r):
    tau = torch.where(a > 0, 1.0, 1.7 * torch.ones_like(a))
    return 4 / tau * torch.sigmoid(tau * (w - 1)) * a


def quadratic(w, a, logp, r):
    width = torch.where(w > 1, UPPER - 1, (1 - LOWER) * torch.ones_like(a))
    return w * a - a.abs() / (2 * width) * (w - 1) ** 2


def gradient_preserving(w, a, logp, r):
    straight = w / w.detach()
    value = torch.where((a < 0) & (w < LOWER), 0.75 * LOWER * straight * a, w * a)
    value = torch.where((a > 0) & (w > UPPER), 0.9 * UPPER * straight * a, value)
    return torch.where((a < 0) & (w >= 3.0), 3.0 * a, value)


def weight_clip(w, a, logp, r):
    return clipped(w).detach() * a * logp


def signed_weight_clip(w, a, logp, r):
    return torch.where(r > 0, 1.0, w.clamp(0, 1)).detach() * a * logp


def gamma_weight(w, a, logp, r):
    k, c = (a <= 0) + 2.0, (a > 0) + 2.0
    return (w**k * torch.exp(c * (1 - w))).detach() * a * logp


FORMULAS = {
    "none": ({}, "pathwise", lambda w, a, logp, r: w * a),
    "clip": ({}, "pathwise", clip),
    "dual_clip": ({"cap": 3.0}, "pathwise", dual_clip),
    "two_sided_clip": ({"cap": 1.1}, "pathwise", two_sided_clip),
    "mask": ({}, "pathwise", mask),
    "reinforce": ({}, "score", lambda w, a, logp, r: a * logp),
    "by_sign": (
        {"of": "reward", "positive": {"kind": "reinforce"}, "negative": {"kind": "weight_clip"}},
        "score",
        lambda w, a, logp, r: torch.where(r > 0, 1.0, clipped(w)).detach() * a * logp,
    ),
    "soft_gate": ({"tau_positive": 1.0, "tau_negative": 1.7}, "pathwise", soft_gate),
    "quadratic": ({}, "pathwise", quadratic),
    "gradient_preserving_clip": (
        {"scale_low": 0.75, "scale_high": 0.9, "cap": 3.0},
        "pathwise",
        gradient_preserving,
    ),
    "weight_clip": ({}, "score", weight_clip),
    "signed_weight_clip": ({"lower": 0.0, "upper": 1.0}, "score", signed_weight_clip),
    "gamma_weight": (
        {"power_positive": 2.0, "decay_positive": 3.0, "power_negative": 3.0, "decay_negative": 2.0},
        "score",
        gamma_weight,
    ),
}


def make_objective(surrogate, divergence=WINDOW, *, kl=None, **parts):
    chosen = {"advantage": Advantage(), "reduction": SequenceMeanTokenSum(), **parts}
    algorithm = Algorithm(name="tried", surrogate=surrogate, on_policy=OnPolicy(law="exact"), **chosen)
    return Objective(Method(algorithm, divergence, Regularizer(kl=kl)))


def decisions(num=4000, seed=0, spread=0.6):
    """Rows of one token: log pi, log-ratio, advantage and reward, all signs and both sides of every bound."""
    generator = torch.Generator().manual_seed(seed)
    log_w, advantage, reward = (
        scale * torch.randn(num, 1, generator=generator, dtype=torch.float64) for scale in (spread, 1.0, 1.0)
    )
    logp = -0.05 - torch.rand(num, 1, generator=generator, dtype=torch.float64)
    return logp, log_w, advantage, reward


def as_batch(logp, log_w, advantage, reward):
    num_rows = len(logp)
    return Batch(
        mask_BT=torch.ones(logp.shape, dtype=torch.bool),
        reward_B=reward[:, 0],
        group_B=torch.arange(num_rows),
        sample_key_B=torch.arange(num_rows),
        rollout_logprob_BT=logp - log_w,
        behavior_logprob_BT=logp - log_w,
        proximal_logprob_BT=logp - log_w,
        advantage_BT=advantage,
        is_trained_B=torch.ones(num_rows, dtype=torch.bool),
    )


def run(objective, logp, log_w, advantage, reward, divergence_BT=None):
    """The mean objective (the loss with its sign turned), its gradient per row, and details."""
    batch = as_batch(logp, log_w, advantage, reward)
    leaf = logp.clone().requires_grad_()
    prepared = objective.prepare(batch, None, objective.initial_state())
    output = objective.loss(batch, PolicyTokens(logprob_BT=leaf, divergence_BT=divergence_BT), prepared)
    (gradient,) = torch.autograd.grad(output.loss, leaf)
    return -output.loss.detach(), -gradient, output


def expected(formula, logp, log_w, advantage, reward):
    leaf = logp.clone().requires_grad_()
    value = formula((leaf - (logp - log_w)).exp(), advantage, leaf, reward).mean()
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


@pytest.mark.parametrize("kind", sorted(FORMULAS))
def test_a_surrogate_is_its_published_formula_in_value_and_gradient(kind):
    settings, gradient, formula = FORMULAS[kind]
    given = decisions()
    value, slope, _ = run(
        make_objective(Surrogate.build(kind, **form_of(kind, gradient), **settings)), *given
    )
    expected_value, expected_slope = expected(formula, *given)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-10, atol=1e-15)
    if gradient == "pathwise":
        torch.testing.assert_close(value, expected_value, rtol=1e-12, atol=1e-15)


def test_every_surrogate_but_the_regression_has_a_formula_here():
    assert FORMULAS.keys() | {"implicit_reward_regression"} == Surrogate.kinds.keys()


def form_of(kind, gradient):
    return {"gradient": gradient} if "gradient" in Surrogate.kinds[kind].model_fields else {}


def has_both_forms(kind):
    fields = Surrogate.kinds[kind].model_fields
    return "gradient" in fields and len(get_args(fields["gradient"].annotation)) == 2


@pytest.mark.parametrize("kind", sorted(filter(has_both_forms, FORMULAS)))
def test_a_score_gradient_is_the_pathwise_one_within_the_log_ratio_limit(kind):
    settings, _, _ = FORMULAS[kind]
    given = decisions(seed=1)
    slopes = [
        run(make_objective(Surrogate.build(kind, gradient=g, **settings)), *given)[1]
        for g in ("pathwise", "score")
    ]
    assert torch.equal(*slopes)


def test_beyond_the_log_ratio_limit_a_pathwise_gradient_ends_and_a_score_one_does_not():
    logp = torch.tensor([[-1.0], [-1.0], [-1.0]], dtype=torch.float64)
    log_w = torch.tensor([[1.9], [2.5], [-2.5]], dtype=torch.float64)
    advantage = torch.ones_like(logp)
    _, pathwise, _ = run(
        make_objective(Surrogate.build("none"), log_ratio_limit=2.0), logp, log_w, advantage, advantage
    )
    _, score, _ = run(
        make_objective(Surrogate.build("none", gradient="score"), log_ratio_limit=2.0),
        logp,
        log_w,
        advantage,
        advantage,
    )
    assert (pathwise != 0).flatten().tolist() == [True, False, False]
    torch.testing.assert_close(3 * score[:, 0], torch.tensor([1.9, 2.0, -2.0]).double().exp())


# The unified view: arXiv 2602.05494.


@pytest.mark.parametrize("seed", range(5))
def test_theorem_4_1_clipping_any_window_drops_infeasible_tokens_that_move_away(seed):
    generator = torch.Generator().manual_seed(seed)
    lower = torch.rand((), generator=generator).item()
    upper = 1 + 2 * torch.rand((), generator=generator).item()
    logp, log_w, advantage, reward = decisions(seed=seed)
    objective = make_objective(Surrogate.build("clip"), ExplicitWindow(lower=lower, upper=upper))
    _, slope, output = run(objective, logp, log_w, advantage, reward)
    w = log_w.exp()
    dropped = ((w < lower) & (advantage < 0)) | ((w > upper) & (advantage > 0))
    torch.testing.assert_close(
        slope * len(w), torch.where(dropped, 0.0, w * advantage), rtol=1e-9, atol=1e-12
    )
    assert torch.equal(output.details.dropped_BT, dropped)
    unified = expected(
        lambda x, a, _, __: torch.minimum(x * a, x.clamp(lower, upper) * a), logp, log_w, advantage, reward
    )
    torch.testing.assert_close(slope, unified[1], rtol=1e-9, atol=1e-15)


class Feasibility(Divergence):
    """An arbitrary true or false per token."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    feasible_BT: torch.Tensor

    def region(self, x):
        return Region(feasible_BT=self.feasible_BT)


@pytest.mark.parametrize("seed", range(5))
def test_any_feasibility_test_gives_the_gradient_of_the_unified_surrogate(seed):
    """min(w A, clip_C(w) A), where clip_C is w if feasible and else the constant 1."""
    logp, log_w, advantage, reward = decisions(seed=10 + seed)
    feasible = torch.rand(logp.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    value, slope, _ = run(
        make_objective(Surrogate.build("clip"), Feasibility(feasible_BT=feasible)),
        logp,
        log_w,
        advantage,
        reward,
    )

    def unified(w, a, _, __):
        return torch.minimum(w * a, torch.where(feasible, w, 1.0) * a)

    expected_value, expected_slope = expected(unified, logp, log_w, advantage, reward)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(value, expected_value, rtol=1e-12, atol=1e-15)


def test_a_state_divergence_cuts_by_its_value_and_holds_at_one():
    logp, log_w, advantage, reward = decisions()
    divergence_BT = torch.rand(logp.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    objective = make_objective(Surrogate.build("clip"), Divergence.build("state_kl", delta=0.4))
    _, slope, output = run(objective, logp, log_w, advantage, reward, divergence_BT)
    dropped = (divergence_BT > 0.4) & (advantage * log_w > 0)
    assert torch.equal(output.details.dropped_BT, dropped)
    assert torch.equal(slope == 0, dropped)


def test_two_sided_clip_with_a_cap_above_the_window_is_the_dual_clip():
    given = decisions(spread=1.2)
    two = run(make_objective(Surrogate.build("two_sided_clip", cap=4.0)), *given)
    dual = run(make_objective(Surrogate.build("dual_clip", cap=4.0)), *given)
    assert torch.equal(two[0], dual[0])
    assert torch.equal(two[1], dual[1])


# Levels and order of sequence ratios.


def rows(num_rows=40, num_tokens=5, seed=3):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, num_tokens)
    logp = -0.05 - torch.rand(shape, generator=generator, dtype=torch.float64)
    log_w = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    advantage = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64).expand(shape)
    return logp, log_w, advantage, advantage.clone()


def test_gspo_differentiates_the_geometric_mean_once_per_row():
    logp, log_w, advantage, reward = rows()
    ratio = Ratios(gate=Ratio(level="sequence_mean"), weight=WeightRatio(level="sequence_mean"))
    objective = make_objective(Surrogate.build("clip"), ratio=ratio, reduction=SequenceMeanTokenMean())
    value, slope, _ = run(objective, logp, log_w, advantage, reward)
    leaf = logp.clone().requires_grad_()
    s = (leaf - (logp - log_w)).mean(dim=1).exp()
    truth = torch.minimum(s * advantage[:, 0], clipped(s) * advantage[:, 0]).mean()
    torch.testing.assert_close(value, truth.detach(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(slope, torch.autograd.grad(truth, leaf)[0], rtol=1e-9, atol=1e-15)


def test_gmpo_clips_each_token_on_the_advantages_side_before_the_mean():
    """verl's formula: exp(mean of sign(A) min(sign(A) x, sign(A) clamp(x, -0.2, 0.2))) A."""
    logp, log_w, advantage, reward = rows()
    objective = make_objective(
        Surrogate.build("clip"),
        Divergence.build("k1", delta=0.2),
        ratio=Ratios(weight=WeightRatio(level="sequence_mean", order="clip_then_mean")),
        reduction=SequenceMeanTokenMean(),
    )
    value, slope, _ = run(objective, logp, log_w, advantage, reward)
    leaf = logp.clone().requires_grad_()
    x, sign = leaf - (logp - log_w), torch.sign(advantage)
    one_sided = sign * torch.minimum(sign * x, sign * x.clamp(-0.2, 0.2))
    truth = (one_sided.mean(dim=1).exp() * advantage[:, 0]).mean()
    torch.testing.assert_close(value, truth.detach(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(slope, torch.autograd.grad(truth, leaf)[0], rtol=1e-9, atol=1e-15)
    assert (slope == 0).any()


def test_each_token_gets_its_own_coefficient_of_a_sequence_ratio():
    """GSPO-token: differentiating the ratio gives all tokens the mean of their row's coefficients instead."""
    logp, log_w, advantage, reward = rows()
    gspo = make_objective(
        Surrogate.build("none"),
        ratio=Ratios(gate=Ratio(level="sequence_mean"), weight=WeightRatio(level="sequence_mean")),
        reduction=SequenceMeanTokenMean(),
    )
    varied = advantage * torch.linspace(0.5, 1.5, logp.shape[1]).double()
    for given, is_constant in ((advantage.expand_as(logp), True), (varied, False)):
        _, slope, _ = run(gspo, logp, log_w, given, reward)
        leaf = logp.clone().requires_grad_()
        ratio = (leaf - (logp - log_w)).mean(dim=1, keepdim=True).exp()
        differentiated = torch.autograd.grad((ratio * given).mean(dim=1).mean(), leaf)[0]
        own = ratio.detach() * given / logp.numel()
        torch.testing.assert_close(slope, own, rtol=1e-10, atol=1e-15)
        assert torch.allclose(slope, differentiated, rtol=1e-9) is is_constant
        row_mean = own.mean(dim=1, keepdim=True).expand_as(own)
        torch.testing.assert_close(differentiated, row_mean, rtol=1e-9, atol=1e-15)


def test_minirl_is_its_formula(compose_method):
    """arXiv 2512.01374: M min(pi / rollout, 5) A per token, summed; the gate looks at the behavior policy."""
    minirl = compose_method("minirl")
    logp, log_w, advantage, reward = decisions(seed=5)
    engine_gap = 0.8 * torch.randn(logp.shape, generator=torch.Generator().manual_seed(6)).double()
    batch = replace(as_batch(logp, log_w, advantage, reward), rollout_logprob_BT=logp - log_w - engine_gap)
    leaf = logp.clone().requires_grad_()
    prepared = minirl.objective.prepare(batch, None, minirl.objective.initial_state())
    output = minirl.objective.loss(batch, PolicyTokens(logprob_BT=leaf), prepared)
    w = log_w.exp()
    kept = ~(((advantage > 0) & (w > 1.27)) | ((advantage < 0) & (w < 0.8)))
    truth = kept * (log_w + engine_gap).exp().clamp(max=5.0) * advantage / len(logp)
    torch.testing.assert_close(-torch.autograd.grad(output.loss, leaf)[0], truth, rtol=1e-10, atol=1e-15)
    scored = minirl.algorithm.advantage
    assert (scored.baseline, scored.scale) == ("group_mean", "none")


def test_decoupled_is_its_formula(compose_method):
    """arXiv 2110.00641: sg(proximal / behavior) min(r A, clip(r, 0.8, 1.2) A) with r = policy / proximal."""
    objective = compose_method("decoupled").objective
    logp, log_w, advantage, reward = decisions(seed=7)
    staleness = 0.5 * torch.randn(logp.shape, generator=torch.Generator().manual_seed(8)).double()
    batch = replace(as_batch(logp, log_w, advantage, reward), behavior_logprob_BT=logp - log_w - staleness)
    leaf = logp.clone().requires_grad_()
    prepared = objective.prepare(batch, None, objective.initial_state())
    output = objective.loss(batch, PolicyTokens(logprob_BT=leaf), prepared)
    again = logp.clone().requires_grad_()
    ratio = (again - batch.proximal_logprob_BT).exp()
    clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    truth = torch.autograd.grad((staleness.exp() * clipped).mean(), again)[0]
    assert (truth == 0.0).any()
    torch.testing.assert_close(-torch.autograd.grad(output.loss, leaf)[0], truth, rtol=1e-9, atol=1e-15)


def test_a_sequence_product_counts_once_per_row_in_the_value():
    logp, log_w, advantage, reward = rows()
    objective = make_objective(Surrogate.build("none"), ratio=Ratios(weight=WeightRatio(level="sequence")))
    value, slope, _ = run(objective, logp, log_w, advantage, reward)
    leaf = logp.clone().requires_grad_()
    truth = ((leaf - (logp - log_w)).sum(dim=1).exp() * advantage[:, 0]).mean()
    torch.testing.assert_close(value, truth.detach(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(slope, torch.autograd.grad(truth, leaf)[0], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("estimator", ["fkl", "rkl", "ufkl", "urkl"])
def test_rpg_reinforce_is_algorithm_2(estimator):
    """arXiv 2505.17508: psi = -A' log pi with A' = A + C / w; kept as dual-clip PPO would, weight w A'."""
    beta, cap = 0.3, 2.0
    logp, log_w, advantage, reward = decisions(seed=4)
    w = log_w.exp()
    c = {
        "fkl": beta * torch.ones_like(w),
        "rkl": -beta * w * (log_w + 1),
        "ufkl": beta * (1 - w),
        "urkl": -beta * w * log_w,
    }[estimator]
    regularized = advantage + c / w
    keeps = torch.where(regularized > 0, w < UPPER, (w > LOWER) & (w < cap))
    penalty = KLPenalty(estimator=estimator, coefficient=beta, anchor="behavior", placement="weight")
    objective = make_objective(Surrogate.build("dual_clip", cap=cap, gradient="score"), kl=penalty)
    _, slope, _ = run(objective, logp, log_w, advantage, reward)
    truth = torch.where(keeps, w * regularized, 0.0) / len(w)
    torch.testing.assert_close(slope, truth, rtol=1e-10, atol=1e-15)


def test_a_penaltys_own_limit_bounds_the_log_ratio_and_not_the_value(make_case):
    """Peers clamp the value: within a log-ratio of -4 k3 is e^4 - 5 = 49.6, above their 10."""
    case = make_case(0)
    mask_BT = case.batch.mask_BT
    kl = KLPenalty(estimator="k3", coefficient=1.0, anchor="reference", placement="loss", log_ratio_limit=4.0)
    batch = replace(case.batch, reference_logprob_BT=case.policy.logprob_BT + 6.0)
    penalty = kl.penalize(case.policy.logprob_BT, batch, 20.0)
    expected = torch.full((int(mask_BT.sum()),), math.exp(4.0) - 5.0).double()
    torch.testing.assert_close(penalty.value_BT[mask_BT], expected, rtol=1e-6, atol=0.0)


def test_atr_is_the_asymmetric_clip_of_its_bounds_bit_for_bit(compose_method, make_case, step):
    atr = compose_method("atr")
    window = atr.divergence.window()
    twins = [
        compose_method(
            "clip_higher",
            f"divergence.epsilon_low={1 - window.lower!r}",
            f"divergence.epsilon_high={window.upper - 1!r}",
        ),
        compose_method(
            "grpo",
            "divergence=window",
            f"divergence.lower={window.lower!r}",
            f"divergence.upper={window.upper!r}",
        ),
    ]
    for dtype, seed in ((torch.float64, 0), (torch.float32, 1), (torch.float32, 2)):
        case = make_case(seed, num_groups=16, num_tokens=11).to(dtype)
        first = step(atr.objective, case)
        assert first.output.details.dropped_BT.any()
        for twin in twins:
            assert twin.divergence.window() == atr.divergence.window()
            other = step(twin.objective, case)
            assert torch.equal(first.loss, other.loss)
            assert torch.equal(first.gradient_BT, other.gradient_BT)
