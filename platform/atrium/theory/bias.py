"""Bias of expected gradients: KL estimators and importance weights, at token and sequence level.

For completions of one token, each estimator has the bias stated in its paper. For longer completions, the
usual sums over tokens neglect the distribution of prefixes and the KL of later tokens; the sequence level is
exact. Sources: RPG, arXiv 2505.17508; k1 to k3 as losses: arXiv 2510.01555 and 2512.21852.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atrium.method.advantages import Advantage
from atrium.method.objective import Objective
from atrium.method.regularizers import Estimator, KLCorrection, KLPenalty
from atrium.theory.expectations import enumerated, expected_gradient, group_loss
from atrium.theory.gradients import of_kept_tokens
from atrium.theory.results import EstimatorBias, Faithfulness
from atrium.theory.testbed import Tabular, kl, relative_error

REVERSE, FORWARD = "KL(policy || reference)", "KL(reference || policy)"
ESTIMATORS: tuple[tuple[Estimator, KLCorrection, str], ...] = (
    ("k1", "none", REVERSE),
    ("k1", "weight", REVERSE),
    ("k2", "none", REVERSE),
    ("k2", "detached_weight", REVERSE),
    ("k3", "none", REVERSE),
    ("k3", "detached_weight", REVERSE),
    ("k3", "weight", REVERSE),
    ("fkl", "none", FORWARD),
    ("ufkl", "none", FORWARD),
    ("rkl", "none", REVERSE),
    ("urkl", "none", REVERSE),
)
"""Estimators with their corrections, and the KL whose gradient each one should estimate."""
_DISTANCE = 0.6
"""Standard deviation of logit differences between behavior policy and policy or reference."""
_BY_CORRECTION = {"none": "{}", "weight": "w {}", "detached_weight": "sg(w) {}"}


def estimator_biases(*, lengths: Sequence[int] = (1, 2, 3), num_seeds: int = 4) -> list[EstimatorBias]:
    """Return each estimator's relative gradient error (mean over seeds), for each completion length.

    Each error is computed for samples of the policy itself and for samples of another behavior policy.
    """
    return [
        EstimatorBias(
            name=_BY_CORRECTION[correction].format(estimator),
            target=target,
            num_tokens=num_tokens,
            is_on_policy=is_on_policy,
            token_error=_mean_error(at_token, target, num_tokens, is_on_policy, num_seeds),
            sequence_error=_mean_error(at_sequence, target, num_tokens, is_on_policy, num_seeds),
        )
        for estimator, correction, target in ESTIMATORS
        for at_token, at_sequence in [_penalties(estimator, correction)]
        for num_tokens in lengths
        for is_on_policy in (True, False)
    ]


def _penalties(estimator: Estimator, correction: KLCorrection) -> tuple[KLPenalty, KLPenalty]:
    """Return the KL penalty with this estimator and correction, once at token and once at sequence level."""
    at_token = KLPenalty(
        estimator=estimator, coefficient=1.0, anchor="reference", placement="loss", correction=correction
    )
    return at_token, at_token.model_copy(update={"level": "sequence"})


def _mean_error(
    penalty: KLPenalty, target: str, num_tokens: int, is_on_policy: bool, num_seeds: int
) -> float:
    total = 0.0
    for seed in range(num_seeds):
        behavior = Tabular.random(100 + seed, num_tokens)
        policy = behavior.near(200 + seed, 0.0 if is_on_policy else _DISTANCE).trainable()
        reference = behavior.near(300 + seed, _DISTANCE)
        found = _penalty_gradient(penalty, policy, behavior, reference)
        current_B, anchor_B = policy.logprob_B(), reference.logprob_B()
        divergence = kl(current_B, anchor_B) if target == REVERSE else kl(anchor_B, current_B)
        total += relative_error(found, policy.gradient(divergence))
    return total / num_seeds


def _penalty_gradient(penalty: KLPenalty, policy: Tabular, behavior: Tabular, reference: Tabular) -> Tensor:
    """Return the penalty's expected gradient (flat), computed from its coefficients on tokens."""
    no_reward_B = torch.zeros(policy.num_completions, dtype=torch.float64)
    batch, tokens, prepared = enumerated(
        policy, behavior=behavior, reference=reference, advantage_B=no_reward_B
    )
    coefficient_BT = penalty.penalize(tokens.logprob_BT.detach(), batch, None).coefficient_BT
    return policy.gradient((prepared.row_factor_B[:, None] * coefficient_BT * tokens.logprob_BT).sum())


def faithfulness(
    objective: Objective,
    *,
    distances: Sequence[float] = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0),
    num_tokens: int = 2,
    num_seeds: int = 4,
) -> Faithfulness:
    """Return the cosine between a method's expected gradient and that of the expected reward, by distance.

    The policy moves away from the behavior policy along the true gradient of the reward, as updates on one
    batch would move it. A distance d is a move of length 3 d in logits. The advantage is the reward minus its
    expectation, and completions are weighted by their behavior probability, so methods differ only in ratio,
    trust region, surrogate and regularizer. For surrogates that regress rewards, the expected loss over
    groups of two completions is used instead. Results are means over seeds.
    """
    cosines, kls = [], []
    for distance in distances:
        points = [_cosine(of_kept_tokens(objective), distance, num_tokens, seed) for seed in range(num_seeds)]
        cosines.append(sum(cosine for cosine, _ in points) / num_seeds)
        kls.append(sum(moved for _, moved in points) / num_seeds)
    return Faithfulness(name=objective.method.algorithm.name, distance_kl=tuple(kls), cosine=tuple(cosines))


def _cosine(objective: Objective, distance: float, num_tokens: int, seed: int) -> tuple[float, float]:
    """Return, for one seed, the cosine between two expected gradients, and KL(behavior || policy) in nats.

    The gradients are those of the method and of the reward. The cosine is 0 if the method's gradient is 0.
    """
    behavior = Tabular.random(400 + seed, num_tokens).trainable()
    generator = torch.Generator().manual_seed(500 + seed)
    reward_B = torch.rand(behavior.num_completions, generator=generator, dtype=torch.float64)
    uphill = behavior.gradient(behavior.expected(reward_B))
    policy = behavior.moved(uphill / uphill.norm(), 3.0 * distance).trainable()
    behavior = behavior.moved(uphill, 0.0)
    truth = policy.gradient(policy.expected(reward_B))
    found = _reward_gradient(objective, policy, behavior, reward_B)
    size = (found.norm() * truth.norm()).item()
    cosine = (found @ truth).item() / size if size > 0.0 else 0.0
    return cosine, kl(behavior.logprob_B(), policy.logprob_B()).item()


def _reward_gradient(objective: Objective, policy: Tabular, behavior: Tabular, reward_B: Tensor) -> Tensor:
    if objective.method.algorithm.surrogate.regresses:
        chosen = Objective(objective.method.with_parts(advantage=Advantage(baseline="group_mean")))
        sampler_B = behavior.logprob_B().exp()
        loss = group_loss(chosen, policy, behavior=behavior, reward_B=reward_B, sampler_B=sampler_B)
        return -policy.gradient(loss)
    advantage_B = reward_B - behavior.expected(reward_B)
    return expected_gradient(objective, policy, behavior=behavior, advantage_B=advantage_B)
