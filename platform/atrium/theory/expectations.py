"""Exact expected losses of an objective, by enumeration of all completions or all groups.

A batch with one row per completion, weighted by its probability under the sampler (`row_factor_B`), gives an
exact expectation. Objectives that use group means need one row per member of each possible group instead.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from atrium.method.advantages import Advantage
from atrium.method.algorithm import Algorithm, OnPolicy
from atrium.method.batch import Batch, PolicyTokens
from atrium.method.divergences import NoDivergence
from atrium.method.method import Method
from atrium.method.objective import MinibatchConstants, Objective
from atrium.method.ratios import Level, Ratios, WeightRatio
from atrium.method.reductions import SequenceMeanTokenSum
from atrium.method.regularizers import KLPenalty, Regularizer
from atrium.method.surrogates import NoSurrogate
from atrium.theory.testbed import Tabular, batch_of, prepared, tokens_of


def unclipped(
    *,
    kl: KLPenalty | None = None,
    gradient: Literal["pathwise", "score"] = "pathwise",
    level: Level = "sequence",
) -> Objective:
    """Return an importance-sampling objective with penalty `kl` and no trust region, baseline or clamps."""
    algorithm = Algorithm(
        name="unclipped",
        advantage=Advantage(baseline="none"),
        ratio=Ratios(weight=WeightRatio(level=level)),
        surrogate=NoSurrogate(gradient=gradient),
        reduction=SequenceMeanTokenSum(),
        log_ratio_limit=None,
        on_policy=OnPolicy(law="exact"),
    )
    return Objective(Method(algorithm, NoDivergence(), Regularizer(kl=kl)))


def enumerated(
    policy: Tabular,
    *,
    behavior: Tabular,
    advantage_B: Tensor,
    sampler_B: Tensor | None = None,
    reference: Tabular | None = None,
    objective: Objective | None = None,
) -> tuple[Batch, PolicyTokens, MinibatchConstants]:
    """Return a batch with one row per completion, the policy's values, and constants that weight the rows.

    Row weights are the sampler's probabilities `sampler_B`, by default those of the behavior policy. If
    `objective` needs a prepare pass, the constants include its results.
    """
    rows = torch.arange(policy.num_completions)
    batch = batch_of(
        rows,
        behavior=behavior,
        reward_B=advantage_B,
        group_B=torch.zeros_like(rows),
        reference=reference,
    )
    batch = replace(batch, advantage_BT=advantage_B[:, None] * batch.mask_BT)
    if sampler_B is None:
        sampler_B = behavior.logprob_B().exp().detach()
    constants = MinibatchConstants(
        row_factor_B=sampler_B, token_weight_BT=None, row_constant_B=None, entropy_coefficient=0.0
    )
    if objective is None:
        return batch, PolicyTokens(logprob_BT=policy.logprob_BT()), constants
    tokens = tokens_of(policy, rows, objective, behavior)
    if objective.needs.prepare_pass:
        constants = replace(prepared(objective, batch, tokens), row_factor_B=sampler_B)
    return batch, tokens, constants


def expected_gradient(
    objective: Objective,
    policy: Tabular,
    *,
    behavior: Tabular,
    advantage_B: Tensor,
    sampler_B: Tensor | None = None,
    reference: Tabular | None = None,
) -> Tensor:
    """Compute the expected ascent gradient of the objective under the sampler, as a flat vector."""
    batch, tokens, constants = enumerated(
        policy,
        behavior=behavior,
        advantage_B=advantage_B,
        sampler_B=sampler_B,
        reference=reference,
        objective=objective,
    )
    return -policy.gradient(objective.loss(batch, tokens, constants).loss)


def group_loss(
    objective: Objective,
    policy: Tabular,
    *,
    behavior: Tabular,
    reward_B: Tensor,
    sampler_B: Tensor,
    group_size: int = 2,
) -> Tensor:
    """Return the expected loss over groups of `group_size` completions drawn independently by the sampler."""
    groups = list(itertools.product(range(policy.num_completions), repeat=group_size))
    rows = torch.tensor(groups).flatten()
    weight_P = sampler_B[torch.tensor(groups)].prod(dim=1)
    group_B = torch.arange(len(groups)).repeat_interleave(group_size)
    batch = batch_of(rows, behavior=behavior, reward_B=reward_B[rows], group_B=group_B)
    tokens = tokens_of(policy, rows, objective, behavior)
    scored = objective.with_advantages(batch)
    constants = prepared(objective, scored, tokens)
    # The reduction averages over groups; this factor replaces the average by an expectation.
    factor_B = constants.row_factor_B * len(groups) * weight_P[group_B]
    return objective.loss(scored, tokens, replace(constants, row_factor_B=factor_B)).loss
