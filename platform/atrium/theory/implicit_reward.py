"""Checks of Theorems 1 to 3 of GVPO (arXiv 2504.19599), with a policy small enough to enumerate.

Expected losses are minimized numerically. Theorem 1: The loss has a single minimizer, pi* = pi' exp(R /
beta) / Z, where pi' is the anchor policy and R the reward. Theorem 2: The minimizer is the same for every
sampler whose support covers that of pi'. Theorem 3: After n steps, each anchored at the previous policy,
the policy maximizes E[R] - (beta / n) KL(pi || first policy).

GVPO is compared with an objective that maximizes the importance-weighted reward minus beta times the KL
(estimated by k3 times the importance weight). Under samples of the anchor policy, this objective has the same
optimum as GVPO's loss. Under any other sampler, its optimum depends on the sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from atrium.base.records import Floats
from atrium.method.advantages import Advantage
from atrium.method.objective import Objective
from atrium.method.ratios import Ratios, WeightRatio
from atrium.method.reductions import GroupUnbiasedTokenSum
from atrium.method.regularizers import KLPenalty
from atrium.method.reward_regression import ImplicitRewardRegression
from atrium.theory.expectations import enumerated, group_loss, unclipped
from atrium.theory.results import Optimum, RegressionFindings, RegressionSteps
from atrium.theory.testbed import Tabular, kl

BETA = 0.4
_NUM_TOKENS = 2
_GRADIENT_TOLERANCE = 1e-7


def regression_findings(*, num_starts: int = 3, num_steps: int = 4) -> RegressionFindings:
    """Minimize GVPO's loss from several starts, under several samplers, and over several steps."""
    anchor = Tabular.random(15, _NUM_TOKENS)
    reward_B = rewards(anchor.num_completions)
    optimum_B = tilted(anchor, reward_B)
    own_B = anchor.logprob_B().exp()
    starts = [Tabular.random(700 + seed, _NUM_TOKENS, spread=1.5) for seed in range(num_starts)]
    found = [regression_optimum(anchor, start, reward_B, own_B) for start in starts]
    optima = []
    for sampler, sampler_B in samplers(anchor, reward_B).items():
        ours = regression_optimum(anchor, anchor, reward_B, sampler_B)
        theirs = _weighted_optimum(anchor, reward_B, sampler_B)
        optima += [
            _optimum("GVPO", sampler, ours, optimum_B),
            _optimum("weighted reward, KL", sampler, theirs, optimum_B),
        ]
    return RegressionFindings(
        start_errors=tuple(_difference(policy, optimum_B) for policy in found),
        optimum_B=tuple(optimum_B.exp().tolist()),
        optima=tuple(optima),
        steps=_steps(anchor, reward_B, num_steps),
    )


def rewards(num_completions: int) -> Tensor:
    """Return a fixed random reward in [0, 1] for each completion [B]."""
    generator = torch.Generator().manual_seed(99)
    return torch.rand(num_completions, generator=generator, dtype=torch.float64)


def tilted(anchor: Tabular, reward_B: Tensor, beta: float = BETA) -> Tensor:
    """Return log pi* [B], where pi* = pi' exp(R / beta) / Z, pi' is the anchor, and R is `reward_B`."""
    return (anchor.logprob_B() + reward_B / beta).log_softmax(dim=0)


def samplers(anchor: Tabular, reward_B: Tensor) -> Mapping[str, Tensor]:
    """Return several samplers with full support, by name, as probabilities [B] of all completions."""
    own_B = anchor.logprob_B().exp()
    uniform_B = torch.full_like(own_B, 1.0 / len(own_B))
    generator = torch.Generator().manual_seed(11)
    random_B = torch.rand(len(own_B), generator=generator, dtype=torch.float64) + 0.05
    demonstrations_B = torch.zeros_like(own_B)
    demonstrations_B[reward_B.argmax()] = 1.0
    return {
        "own samples": own_B,
        "half demonstrations": 0.5 * own_B + 0.5 * demonstrations_B,
        "uniform": uniform_B,
        "another policy": random_B / random_B.sum(),
    }


def minimised(start: Tabular, loss: Callable[[Tabular], Tensor]) -> Tabular:
    """Return the policy that minimizes `loss`, found by BFGS from `start`."""

    def value_and_gradient(change: Floats) -> tuple[float, Floats]:
        policy = start.moved(torch.from_numpy(change), 1.0).trainable()
        value = loss(policy)
        return value.item(), policy.gradient(value).numpy()

    num_logits = sum(part.numel() for part in start.logits)
    # torch.optim would first import the compiler, which takes longer than the minimization.
    found = minimize(
        value_and_gradient, np.zeros(num_logits), jac=True, method="BFGS", tol=_GRADIENT_TOLERANCE
    )
    return start.moved(torch.from_numpy(found.x), 1.0)


def regression_optimum(anchor: Tabular, start: Tabular, reward_B: Tensor, sampler_B: Tensor) -> Tabular:
    """Return the minimizer of GVPO's expected loss under the sampler's probabilities, found from `start`.

    GVPO has the settings of its preset: sequence ratios, group means, factor 1 / (k - 1).
    """
    method = unclipped().method.with_parts(
        advantage=Advantage(baseline="group_mean"),
        ratio=Ratios(weight=WeightRatio(level="sequence")),
        surrogate=ImplicitRewardRegression(beta=BETA),
        reduction=GroupUnbiasedTokenSum(),
    )
    objective = Objective(method)

    def loss(policy: Tabular) -> Tensor:
        return group_loss(objective, policy, behavior=anchor, reward_B=reward_B, sampler_B=sampler_B.detach())

    return minimised(start, loss)


def _weighted_optimum(anchor: Tabular, reward_B: Tensor, sampler_B: Tensor) -> Tabular:
    """Return the policy that maximizes E_sampler[w (R - mean R)] - beta E_sampler[w k3] with w = pi / pi'.

    In the formula, pi' is the anchor policy, and mean R the expected reward under the sampler.
    """
    penalty = KLPenalty(
        estimator="k3",
        coefficient=BETA,
        anchor="behavior",
        placement="loss",
        correction="weight",
        level="sequence",
    )
    objective = unclipped(kl=penalty)
    advantage_B = reward_B - (sampler_B * reward_B).sum()

    def loss(policy: Tabular) -> Tensor:
        parts = enumerated(policy, behavior=anchor, advantage_B=advantage_B, sampler_B=sampler_B.detach())
        return objective.loss(*parts).loss

    return minimised(anchor, loss)


def _steps(anchor: Tabular, reward_B: Tensor, num_steps: int) -> RegressionSteps:
    """Check Theorem 3 over `num_steps` optimal steps.

    Each step is anchored at the policy of the previous step and samples from this policy.
    """
    first_B = anchor.logprob_B()
    policy = anchor
    kls, gains, errors = [], [], []
    for step in range(1, num_steps + 1):
        own_B = policy.logprob_B().exp().detach()
        policy = regression_optimum(policy, policy, reward_B, own_B)
        kls.append(kl(policy.logprob_B(), first_B).item())
        gains.append(policy.expected(reward_B).item())
        errors.append(_difference(policy, tilted(anchor, reward_B, BETA / step)))
    allowances = torch.linspace(0.0, 1.3 * num_steps / BETA, 60, dtype=torch.float64)
    best = [(first_B + allowance * reward_B).log_softmax(dim=0) for allowance in allowances]
    return RegressionSteps(
        kl=tuple(kls),
        reward=tuple(gains),
        max_difference=tuple(errors),
        frontier_kl=tuple(kl(best_B, first_B).item() for best_B in best),
        frontier_reward=tuple((best_B.exp() * reward_B).sum().item() for best_B in best),
    )


def _optimum(objective: str, sampler: str, policy: Tabular, optimum_B: Tensor) -> Optimum:
    return Optimum(
        objective=objective,
        sampler=sampler,
        max_difference=_difference(policy, optimum_B),
        probability_B=tuple(policy.logprob_B().exp().tolist()),
    )


def _difference(policy: Tabular, optimum_B: Tensor) -> float:
    """Return the largest difference between the policy's and the optimum's probability of a completion.

    `optimum_B` contains the optimum's log-probabilities.
    """
    return (policy.logprob_B().exp() - optimum_B.exp()).abs().max().item()
