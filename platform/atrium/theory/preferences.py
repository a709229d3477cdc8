"""Optima of DPO (arXiv 2305.18290) and GVPO (arXiv 2504.19599) for data on some or all answers.

Both losses depend on differences of implicit rewards between the answers in the data. They determine these
rewards up to one constant for each connected set of compared answers. If an answer is missing from the
data, any probability of this answer is optimal under both losses. If every answer occurs, the optimum is
unique.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from atrium.theory.implicit_reward import BETA, minimised, regression_optimum, rewards, tilted
from atrium.theory.results import PreferenceOptima
from atrium.theory.testbed import Tabular

MASSES = (0.1, 0.5, 0.9)
"""Probabilities of the third answer under the initial policies."""


def preference_optima() -> PreferenceOptima:
    """Minimize DPO's and GVPO's losses with data on two or three answers, from several initial policies.

    The errors are differences from pi' exp(R / beta) / Z, where pi' is the anchor policy and R the reward.
    DPO gets Bradley-Terry preferences for all pairs of the answers in the data. GVPO gets samples that are
    uniform over these answers.
    """
    anchor = Tabular.random(21, 1)
    reward_B = rewards(anchor.num_completions)
    optimum_B = tilted(anchor, reward_B)
    starts = [_with_mass(optimum_B, mass) for mass in MASSES]

    def errors(minimize: Callable[[Tabular], Tabular]) -> tuple[float, ...]:
        found = [minimize(start).logprob_B().exp() for start in starts]
        return tuple((one_B - optimum_B.exp()).abs().max().item() for one_B in found)

    def dpo(answers: Sequence[int]) -> tuple[float, ...]:
        pairs = list(itertools.combinations(answers, 2))
        return errors(
            lambda start: minimised(start, lambda policy: _preference_loss(policy, anchor, reward_B, pairs))
        )

    def gvpo(answers: Sequence[int]) -> tuple[float, ...]:
        sampler_B = torch.zeros_like(reward_B)
        sampler_B[list(answers)] = 1.0 / len(answers)
        return errors(lambda start: regression_optimum(anchor, start, reward_B, sampler_B))

    two, three = (0, 1), (0, 1, 2)
    return PreferenceOptima(
        masses=MASSES,
        dpo_on_two=dpo(two),
        gvpo_on_two=gvpo(two),
        dpo_on_three=dpo(three),
        gvpo_on_three=gvpo(three),
    )


def _with_mass(logprob_B: Tensor, mass: float) -> Tabular:
    """Return a policy with probability `mass` for the third answer.

    The probabilities of the first two answers have the same ratio as in `logprob_B`.
    """
    others_B = logprob_B[:2].softmax(dim=0) * (1.0 - mass)
    return Tabular((torch.cat([others_B, others_B.new_tensor([mass])]).log(),))


def _preference_loss(
    policy: Tabular, anchor: Tabular, reward_B: Tensor, pairs: Sequence[tuple[int, int]]
) -> Tensor:
    """Return DPO's expected loss over the pairs, under Bradley-Terry preferences with these rewards."""
    implicit_B = BETA * (policy.logprob_B() - anchor.logprob_B())
    losses = []
    for first, second in pairs:
        margin = implicit_B[first] - implicit_B[second]
        preferred = torch.sigmoid(reward_B[first] - reward_B[second])
        losses.append(-(preferred * logsigmoid(margin) + (1.0 - preferred) * logsigmoid(-margin)))
    return torch.stack(losses).mean()
