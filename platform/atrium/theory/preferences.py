"""DPO's several optima (arXiv 2305.18290) beside GVPO's one (arXiv 2504.19599), on three answers.

Pairs fix implicit rewards up to one constant for each connected part of the graph of compared answers. With
answers a, b and c, and pairs of a and b alone, any mass on c is optimal for DPO. GVPO, on samples of all
three, has one optimum, whatever policy it starts from.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from atrium.theory.implicit_reward import BETA, regression_optimum, rewards, tilted
from atrium.theory.results import PreferenceOptima
from atrium.theory.testbed import Tabular

MASSES = (0.1, 0.5, 0.9)
"""Of the answer that no pair holds."""


def preference_optima(beta: float = BETA) -> PreferenceOptima:
    """DPO's loss and its slope at policies with different masses on c, and where GVPO leads from each."""
    anchor = Tabular.random(21, 1)
    reward_B = rewards(anchor.num_completions)
    optimum_B = tilted(anchor, reward_B, beta)
    own_B = anchor.logprob_B().exp()
    losses, slopes, errors = [], [], []
    for mass in MASSES:
        policy = _with_mass(optimum_B, mass).trainable()
        loss = _preference_loss(policy.logprob_B(), anchor.logprob_B(), reward_B, beta)
        losses.append(loss.item())
        slopes.append(policy.gradient(loss).abs().max().item())
        found = regression_optimum(anchor, policy, reward_B, own_B, beta)
        errors.append((found.logprob_B().exp() - optimum_B.exp()).abs().max().item())
    return PreferenceOptima(
        masses=MASSES,
        preference_losses=tuple(losses),
        preference_slopes=tuple(slopes),
        regression_errors=tuple(errors),
    )


def _with_mass(logprob_B: Tensor, mass: float) -> Tabular:
    """The policy with this mass on the last answer, and the others' ratio kept."""
    others_B = logprob_B[:2].softmax(dim=0) * (1.0 - mass)
    return Tabular((torch.cat([others_B, others_B.new_tensor([mass])]).log(),))


def _preference_loss(policy_B: Tensor, anchor_B: Tensor, reward_B: Tensor, beta: float) -> Tensor:
    """DPO's loss on pairs of the first two answers, preferred as Bradley and Terry's model has it."""
    implicit_B = beta * (policy_B - anchor_B)
    margin = implicit_B[0] - implicit_B[1]
    preferred = torch.sigmoid(reward_B[0] - reward_B[1])
    return -(preferred * logsigmoid(margin) + (1.0 - preferred) * logsigmoid(-margin))
