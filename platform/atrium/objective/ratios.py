"""Ratios between the trained policy and the policy that an objective compares it with.

A ratio has a level (of one token, or of the sequence as a product or geometric mean), an anchor (whose
probabilities stand below the line) and, as a weight, a cap. Sequence ratios are spread over the tokens
of their row; the gradient that a surrogate puts on a token's log-probability is then the coefficient
itself, which equals differentiating the sequence ratio once per row (the rewriting of GSPO-token,
arXiv 2507.18071).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atrium.objective.batch import Batch, neutral, row_mean, row_sum

Level = Literal["token", "sequence_mean", "sequence", "none"]
Anchor = Literal["behavior", "rollout"]
Order = Literal["mean_then_clip", "clip_then_mean"]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Which ratio is taken: its level, its anchor and its cap.

    `token`: pi(y_t) / anchor(y_t). `sequence_mean`: the geometric mean of a row's token ratios.
    `sequence`: their product. `none`: 1, whatever the policies say. `cap` bounds the ratio from above
    where it is used as a weight. `order` `clip_then_mean` holds each token's log-ratio at the bound that
    it crossed before the mean is taken (GMPO, arXiv 2507.20673), rather than clipping the mean (GSPO).
    """

    level: Level = "token"
    anchor: Anchor = "behavior"
    cap: float | None = None
    order: Order = "mean_then_clip"

    def log_ratio(self, logprob_BT: Tensor, batch: Batch) -> Tensor:
        """The log-ratio [B, T] of this level, unbounded; 0 at masked positions of the token level.

        Without behavior log-probabilities the behavior policy is the current one, and the log-ratio 0.
        """
        return self.at_level(token_log_ratio(self.anchor, logprob_BT, batch), batch.mask_BT)

    def at_level(self, token_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Numbers of single tokens [B, T] as this level's: themselves, their row's mean or sum, or 0."""
        match self.level:
            case "token":
                return token_BT
            case "sequence_mean":
                return row_mean(token_BT, mask_BT)[:, None].expand_as(token_BT)
            case "sequence":
                return row_sum(token_BT, mask_BT)[:, None].expand_as(token_BT)
            case "none":
                return torch.zeros_like(token_BT)

    def capped(self, ratio_BT: Tensor) -> Tensor:
        """The ratio, at most `cap`; a capped weight is a constant of the gradient."""
        return ratio_BT if self.cap is None else ratio_BT.clamp(max=self.cap)


def bounded(log_ratio_BT: Tensor, limit: float | None) -> Tensor:
    """The log-ratio held within +-`limit`, so that its exponential stays finite; None bounds nothing."""
    return log_ratio_BT if limit is None else log_ratio_BT.clamp(-limit, limit)


def token_log_ratio(anchor: Anchor, logprob_BT: Tensor, batch: Batch) -> Tensor:
    """log(policy / anchor) [B, T] of single tokens, unbounded, 0 at masked positions."""
    return neutral(logprob_BT - anchor_logprob(anchor, logprob_BT, batch), batch.mask_BT)


def anchor_logprob(anchor: Anchor, logprob_BT: Tensor, batch: Batch) -> Tensor:
    """The log-probabilities [B, T] of the policy below the line of a ratio."""
    if anchor == "rollout":
        return batch.rollout_logprob_BT
    return logprob_BT.detach() if batch.behavior_logprob_BT is None else batch.behavior_logprob_BT
