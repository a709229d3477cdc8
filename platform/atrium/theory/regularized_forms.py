"""Gradients of RPG's loss forms with a KL penalty, and their variance, for completions of one token.

The eight forms of arXiv 2505.17508, Tables 1, 2 and 4 (four divergences, pathwise or as a weight on log pi)
are compared with the derivative of E[R] - beta KL by enumeration. By Proposition 4.1 of that paper, both
forms of a divergence have the same gradient. The module `bias` covers longer completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.method.regularizers import Regularizer
from atrium.theory.expectations import expected_gradient
from atrium.theory.results import FormGradient
from atrium.theory.testbed import Tabular, kl, relative_error

BETA = 0.5
_VOCABULARY = 5
_FORWARD = ("fkl", "ufkl")


def form_gradients(methods: Sequence[Method], *, num_seeds: int = 4) -> list[FormGradient]:
    """Return each method's gradient error (largest over seeds) and gradient variance (mean over seeds).

    The coefficient of each method's KL penalty is replaced by `BETA`. Raises `ValueError` unless every method
    has exactly one KL penalty.
    """
    return [_form_gradient(method, num_seeds) for method in methods]


def _form_gradient(method: Method, num_seeds: int) -> FormGradient:
    if len(method.regularizer.penalties) != 1:
        raise ValueError(
            f"{method.algorithm.name} must have exactly one KL penalty, got "
            f"{len(method.regularizer.penalties)}"
        )
    (penalty,) = method.regularizer.penalties
    kl_of_form = penalty.model_copy(update={"coefficient": BETA})
    objective = Objective(replace(method, regularizer=Regularizer(kl=kl_of_form)))
    found = [_at_seed(objective, seed, is_forward=penalty.estimator in _FORWARD) for seed in range(num_seeds)]
    return FormGradient(
        name=method.algorithm.name,
        error=max(error for error, _ in found),
        variance=sum(variance for _, variance in found) / num_seeds,
    )


def _at_seed(objective: Objective, seed: int, *, is_forward: bool) -> tuple[float, float]:
    """Return one seed's relative error of the expected gradient, and the gradient's variance over samples.

    `is_forward` selects KL(behavior || policy) for the exact gradient, otherwise KL(policy || behavior).
    """
    behavior = Tabular.random(800 + seed, 1, vocabulary=_VOCABULARY)
    policy = behavior.near(900 + seed, 0.6).trainable()
    generator = torch.Generator().manual_seed(seed)
    reward_B = torch.rand(_VOCABULARY, generator=generator, dtype=torch.float64)
    own_B = behavior.logprob_B().exp()
    advantage_B = reward_B - behavior.expected(reward_B)

    def gradient(sampler_B: torch.Tensor) -> torch.Tensor:
        return expected_gradient(
            objective,
            policy,
            behavior=behavior,
            reference=behavior,
            advantage_B=advantage_B,
            sampler_B=sampler_B,
        )

    expected = gradient(own_B)
    ends = (behavior.logprob_B(), policy.logprob_B())
    divergence = kl(*ends) if is_forward else kl(*ends[::-1])
    truth = policy.gradient(policy.expected(reward_B) - BETA * divergence)
    samples = [gradient(one_B) for one_B in torch.eye(_VOCABULARY, dtype=torch.float64)]
    spread_B = torch.stack([(sample - expected).square().sum() for sample in samples])
    return relative_error(expected, truth), (own_B * spread_B).sum().item()
