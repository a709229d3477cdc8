"""Ratios between the trained policy and the policy that an objective compares it with.

A ratio has a level (of one token, or of the sequence as a product or geometric mean), an anchor (whose
probabilities stand below the line) and, as a weight, a cap. Sequence ratios are spread over the tokens
of their row, and each token's log-probability gets its own coefficient, as in GSPO-token (arXiv
2507.18071) and verl. Differentiating the sequence ratio, as TRL does, gives every token the mean of the
row's coefficients instead. The two are equal while advantage, token weight, correction and reduction are
constant in the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atrium.method.batch import Batch, neutral, row_mean, row_sum
from atrium.method.needs import Anchor
from atrium.method.ratios import Level, Ratio, WeightRatio


def log_ratio(ratio: Ratio, logprob_BT: Tensor, batch: Batch) -> Tensor:
    """The log-ratio [B, T] at its level, unbounded; 0 at masked positions of the token level.

    An anchor without log-probabilities is the current policy, and the log-ratio 0.
    """
    return at_level(ratio.level, token_log_ratio(ratio.anchor, logprob_BT, batch), batch.mask_BT)


def at_level(level: Level, token_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Numbers of single tokens [B, T] as a level's: themselves, their row's mean or sum, or 0."""
    match level:
        case "token":
            return token_BT
        case "sequence_mean":
            return row_mean(token_BT, mask_BT)[:, None].expand_as(token_BT)
        case "sequence":
            return row_sum(token_BT, mask_BT)[:, None].expand_as(token_BT)
        case "none":
            return torch.zeros_like(token_BT)


def capped(weight: WeightRatio, ratio_BT: Tensor) -> Tensor:
    """The ratio, at most the weight's cap; a capped weight is a constant of the gradient."""
    return ratio_BT if weight.cap is None else ratio_BT.clamp(max=weight.cap)


def bounded(log_ratio_BT: Tensor, limit: float | None) -> Tensor:
    """The log-ratio held within +-`limit`, so that its exponential stays finite; None bounds nothing."""
    return log_ratio_BT if limit is None else log_ratio_BT.clamp(-limit, limit)


def token_log_ratio(anchor: Anchor, logprob_BT: Tensor, batch: Batch) -> Tensor:
    """log(policy / anchor) [B, T] of single tokens, unbounded, 0 at masked positions."""
    return neutral(logprob_BT - anchor_logprob(anchor, logprob_BT, batch), batch.mask_BT)


def anchor_logprob(anchor: Anchor, logprob_BT: Tensor, batch: Batch) -> Tensor:
    """The log-probabilities [B, T] of the policy below the line of a ratio."""
    anchor_BT = {
        "rollout": batch.rollout_logprob_BT,
        "behavior": batch.behavior_logprob_BT,
        "proximal": batch.proximal_logprob_BT,
    }[anchor]
    return logprob_BT.detach() if anchor_BT is None else anchor_BT
