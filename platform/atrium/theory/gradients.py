"""Gradients of an objective on single tokens, and checks of Theorems 4.1 and 4.2 of arXiv 2602.05494.

Every completion has one token, so token ratios and sequence ratios are equal. The policy and the anchor are
assumed to differ only in the probability of the sampled token: all other tokens keep their relative
probabilities. A divergence between whole distributions then depends only on the two probabilities of the
sampled token.

Token weights that select tokens of a minibatch are replaced by equal weights, so the results describe the
selected tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from atrium.method.batch import PolicyTokens
from atrium.method.divergences import (
    AlphaDivergence,
    BudgetDivergence,
    Divergence,
    StateDivergence,
    TopKDivergence,
)
from atrium.method.objective import LossOutput, MinibatchConstants, Objective
from atrium.method.regions import Region, RegionInputs
from atrium.method.surrogates import Clip
from atrium.method.token_weights import AllTokens
from atrium.theory.results import CoefficientCurves, Equivalence
from atrium.theory.testbed import batch_at, prepared

PROBABILITY = 0.2
"""Behavior probability of the token in `coefficient_curves`; ratios are below 1 / `PROBABILITY`."""
_RANDOM_PROBABILITIES = (0.05, 0.3)


def of_kept_tokens(objective: Objective) -> Objective:
    """Return the objective without a selection of tokens, so that all tokens have equal weights.

    An objective whose token weights do not select tokens within a minibatch is returned unchanged.
    """
    selects = objective.method.algorithm.token_weight.needs.prepare_pass
    return Objective(objective.method.with_parts(token_weight=AllTokens())) if selects else objective


def coefficient_curves(objective: Objective, ratios: tuple[float, ...]) -> CoefficientCurves:
    """Return a token's gradient coefficient at each ratio, for advantages of 1 and -1.

    Ratios must be between 0 and 1 / `PROBABILITY`, since the token's probability is below 1.
    """
    curves = {}
    for advantage in (1.0, -1.0):
        ratio_B = torch.tensor([*ratios, 1.0], dtype=torch.float64)
        output, _ = _loss_of_tokens(
            of_kept_tokens(objective),
            ratio_B,
            torch.full_like(ratio_B, advantage),
            torch.full_like(ratio_B, PROBABILITY),
        )
        curves[advantage] = output.details.coefficient_BT[::2, 0].tolist()
    return CoefficientCurves(
        name=objective.method.algorithm.name,
        ratio=ratios,
        raised=tuple(curves[1.0][:-1]),
        lowered=tuple(curves[-1.0][:-1]),
        at_one=(curves[1.0][-1], curves[-1.0][-1]),
    )


def coefficient_map(
    objective: Objective, ratios: Sequence[float], probabilities: Sequence[float]
) -> tuple[tuple[float, ...], ...]:
    """Return a token's coefficient, relative to that at w = 1, for each ratio and behavior probability.

    Rows are ratios, and columns are behavior probabilities. If the coefficient at w = 1 is 0, values are not
    divided by it. The advantage is 1 for ratios of at least 1 and -1 for smaller ones, so that each token
    moves away from its anchor. The coefficient is 0 if ratio times probability is at least 1.
    """
    rows = []
    probability_B = torch.tensor(probabilities, dtype=torch.float64)
    for ratio in ratios:
        advantage_B = torch.full_like(probability_B, 1.0 if ratio >= 1.0 else -1.0)
        is_possible_B = probability_B * ratio < 1.0
        found = []
        for ratio_B in (torch.where(is_possible_B, ratio, 1.0).double(), torch.ones_like(probability_B)):
            output, _ = _loss_of_tokens(of_kept_tokens(objective), ratio_B, advantage_B, probability_B)
            found.append(output.details.coefficient_BT[::2, 0])
        relative_B = is_possible_B * found[0] / found[1].where(found[1] != 0.0, 1.0)
        rows.append(tuple(relative_B.tolist()))
    return tuple(rows)


def equivalence(
    objective: Objective, *, num_tokens: int = 4000, seed: int = 0, spread: float = 0.35
) -> Equivalence:
    """Compare a method's gradient with that of min(w A, clip_C(w) A), where C is its own trust region.

    The function clip_C(w) is w inside C and 1 outside. The `num_tokens` random tokens have standard normal
    advantages, and normal log-ratios with standard deviation `spread` that are limited so that no token's
    probability exceeds 0.99.
    """
    generator = torch.Generator().manual_seed(seed)
    normal_2B = torch.randn(2, num_tokens, generator=generator, dtype=torch.float64)
    low, high = _RANDOM_PROBABILITIES
    share_B = torch.rand(num_tokens, generator=generator, dtype=torch.float64)
    probability_B = low + (high - low) * share_B
    ratio_B = torch.minimum((spread * normal_2B[0]).exp(), 0.99 / probability_B)
    advantage_B = normal_2B[1]
    objective = of_kept_tokens(objective)
    output, constants = _loss_of_tokens(objective, ratio_B, advantage_B, probability_B)
    details = output.details
    coefficient_B = details.coefficient_BT[::2, 0]
    region = _region_of_tokens(objective, ratio_B, probability_B, constants.bounds)
    held_B = region.feasible_BT[:, 0]
    general_B = _clip_gradient(ratio_B, advantage_B, lambda w_B: torch.where(held_B, w_B, 1.0))
    wrong_B = _clip_gradient(ratio_B, advantage_B, lambda w_B: torch.where(held_B, w_B, 0.0))
    window_error = disagreeing = None
    if objective.method.divergence.has_window:
        lower_B, upper_B = (_by_row(bound, ratio_B) for bound in (region.lower, region.upper))
        clip_B = _clip_gradient(ratio_B, advantage_B, lambda w_B: w_B.clamp(lower_B, upper_B))
        window_error = (coefficient_B - clip_B).abs().max().item()
    if (is_feasible := _feasibility(objective.method.divergence)) is not None:
        feasible_B = torch.tensor([is_feasible(ratio) for ratio in ratio_B.tolist()])
        disagreeing = int((feasible_B != held_B).sum())
    return Equivalence(
        name=objective.method.algorithm.name,
        is_clip=_is_only_a_clip(objective),
        num_tokens=num_tokens,
        dropped_frac=details.dropped_BT[::2, 0].double().mean().item(),
        general_error=(coefficient_B - general_B).abs().max().item(),
        wrong_constant_frac=(general_B != wrong_B).double().mean().item(),
        window_error=window_error,
        num_disagreeing=disagreeing,
    )


def _feasibility(divergence: Divergence) -> Callable[[float], bool] | None:
    """Return a function of w that checks D(w) <= delta, or None if the divergence has no such form."""
    if not isinstance(divergence, BudgetDivergence | AlphaDivergence):
        return None
    function, delta = divergence.of_ratio, divergence.delta
    return lambda ratio: function.value(ratio) <= delta


def _is_only_a_clip(objective: Objective) -> bool:
    """Return whether the clip surrogate alone determines a token's gradient."""
    chosen, regularizer = objective.method.algorithm, objective.method.regularizer
    has_term = regularizer.nll is not None or any(kl.placement != "reward" for kl in regularizer.penalties)
    weighted = chosen.token_weight != AllTokens()
    return isinstance(chosen.surrogate, Clip) and not has_term and not weighted


def _loss_of_tokens(
    objective: Objective, ratio_B: Tensor, advantage_B: Tensor, probability_B: Tensor
) -> tuple[LossOutput, MinibatchConstants]:
    """Return the objective's loss on completions of one token, and the minibatch constants.

    Each token is followed by a partner with ratio 1 and the opposite advantage. The two form a group, since
    some objectives need group means.
    """
    ratio_B = _with_partner(ratio_B, torch.ones_like(ratio_B))
    advantage_B = _with_partner(advantage_B, -advantage_B)
    probability_B = _with_partner(probability_B, probability_B)
    anchor_BT = probability_B.log()[:, None]
    group_B = torch.arange(len(advantage_B)) // 2
    batch = batch_at(anchor_BT, reward_B=advantage_B, group_B=group_B, reference_BT=anchor_BT)
    batch = replace(batch, advantage_BT=advantage_B[:, None])
    tokens = PolicyTokens(
        logprob_BT=(probability_B * ratio_B).log()[:, None],
        entropy_BT=None if objective.needs.entropy == "none" else torch.ones_like(ratio_B)[:, None],
        divergence_BT=_divergence_BT(objective, ratio_B, probability_B),
    )
    constants = prepared(objective, batch, tokens)
    return objective.loss(batch, tokens, constants), constants


def _divergence_BT(objective: Objective, ratio_B: Tensor, probability_B: Tensor) -> Tensor | None:
    """Return the divergence over two outcomes (this token, any other), or None if the method needs none."""
    divergence = objective.method.divergence
    if not isinstance(divergence, StateDivergence | TopKDivergence):
        return None
    moved_B = probability_B * ratio_B
    if divergence.measure == "total_variation":
        return (moved_B - probability_B).abs()[:, None]
    rest_B = torch.log1p(-probability_B) - torch.log1p(-moved_B)
    return (-probability_B * ratio_B.log() + (1.0 - probability_B) * rest_B)[:, None]


def _region_of_tokens(
    objective: Objective, ratio_B: Tensor, probability_B: Tensor, bounds: Tensor | None
) -> Region:
    """Return the method's own trust region at the tokens.

    `bounds` are the bounds that the method derives from the minibatch, or None if it derives none.
    """
    mask_BT = torch.ones(len(ratio_B), 1, dtype=torch.bool)
    inputs = RegionInputs(
        ratio_BT=ratio_B[:, None],
        token_log_ratio_BT=ratio_B.log()[:, None],
        anchor_logprob_BT=probability_B.log()[:, None],
        mask_BT=mask_BT,
        divergence_BT=_divergence_BT(objective, ratio_B, probability_B),
        bounds=bounds,
    )
    return objective.method.divergence.region(inputs)


def _clip_gradient(ratio_B: Tensor, advantage_B: Tensor, clip: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the derivative of min(w A, clip(w) A) with respect to log w."""
    log_ratio_B = ratio_B.log().requires_grad_()
    w_B = log_ratio_B.exp()
    value = torch.minimum(w_B * advantage_B, clip(w_B) * advantage_B).sum()
    (gradient_B,) = torch.autograd.grad(value, log_ratio_B)
    return gradient_B


def _by_row(bound: Tensor | float, like_B: Tensor) -> Tensor:
    return torch.as_tensor(bound, dtype=like_B.dtype).expand(len(like_B), 1)[:, 0]


def _with_partner(value_B: Tensor, partner_B: Tensor) -> Tensor:
    return torch.stack([value_B, partner_B], dim=1).flatten()
