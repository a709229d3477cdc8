"""Ratios between the trained policy and the policy that an objective compares it with.

A ratio has a level (one token, or the sequence as a product or geometric mean) and an anchor (the policy in
the denominator). The ratio that multiplies the advantage can also have a cap. A sequence ratio is repeated at
every token of its row, and each token's log-probability gets its own coefficient, as in GSPO-token (arXiv
2507.18071) and verl. Differentiating the sequence ratio, as TRL does, gives every token the mean of the row's
coefficients instead. The two gradients are equal if advantage, token weight, correction and reduction are
constant in the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atrium.base.section import Positive, Section
from atrium.method.batch import Batch, neutral, row_mean, row_sum
from atrium.method.needs import Anchor, Needs, Policy

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence_mean", "sequence", "none"]


class Ratio(Section):
    """The ratio of the policy to an anchor, per token or per sequence."""

    level: Level = "token"
    """Level of the ratio: one token, the geometric mean of the sequence, its product, or no ratio at all."""
    anchor: Anchor = "behavior"
    """Denominator: the weights that sampled, by the engine's log-probabilities (rollout) or by the trainer's
    (behavior), or the policy at the start of the step (proximal)."""

    @property
    def needs(self) -> Needs:
        """The engine's log-probabilities if there is a ratio to `rollout`, and nothing otherwise."""
        return Needs(rollout_logprobs=self.anchor == "rollout" and self.level != "none")


class WeightRatio(Ratio):
    """The ratio that multiplies the advantage."""

    cap: Positive | None = None
    """Maximum weight, or null for none."""
    order: Literal["mean_then_clip", "clip_then_mean"] = "mean_then_clip"
    """Order of clipping and averaging. `mean_then_clip`: a sequence's mean is clipped (GSPO, arXiv
    2507.18071). `clip_then_mean`: before the mean is computed, the log-ratio of each token that an update
    would move further out is clamped at the bound that it crossed (GMPO, arXiv 2507.20673)."""

    def log_ratio(self, logprob_BT: Tensor, batch: Batch) -> Tensor:
        """Return the unbounded log-ratio [B, T] at the ratio's level. At token level, masked positions are 0.

        If the batch has no log-probabilities of the anchor, the anchor is the current policy and the
        log-ratio is 0.
        """
        return at_level(self.level, token_log_ratio(self.anchor, logprob_BT, batch), batch.mask_BT)

    def capped(self, ratio_BT: Tensor) -> Tensor:
        """Return the ratio, truncated at the weight's cap; a truncated weight has no gradient."""
        return ratio_BT if self.cap is None else ratio_BT.clamp(max=self.cap)


class Ratios(Section):
    """A method's two ratios: one is read by the trust region, the other multiplies the advantage."""

    gate: Ratio = Ratio()
    """Ratio that the trust region reads."""
    weight: WeightRatio = WeightRatio()
    """Ratio that multiplies the advantage."""

    @property
    def are_equal(self) -> bool:
        """Whether weight and gate are exactly the same ratio."""
        gate, weight = self.gate, self.weight
        is_plain = weight.cap is None and weight.order == "mean_then_clip"
        return is_plain and (gate.level, gate.anchor) == (weight.level, weight.anchor)


def at_level(level: Level, token_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return per-token values [B, T] aggregated to `level`; a row's value is repeated at all its tokens.

    Level `token` returns the values themselves, `sequence_mean` each row's mean, `sequence` each row's sum,
    and `none` zeros.
    """
    match level:
        case "token":
            return token_BT
        case "sequence_mean":
            return row_mean(token_BT, mask_BT)[:, None].expand_as(token_BT)
        case "sequence":
            return row_sum(token_BT, mask_BT)[:, None].expand_as(token_BT)
        case "none":
            return token_BT.new_zeros(token_BT.shape)


def bounded(log_ratio_BT: Tensor, limit: float | None) -> Tensor:
    """Clamp the log-ratio to +-`limit` so that its exponential stays finite. None means no limit."""
    return log_ratio_BT if limit is None else log_ratio_BT.clamp(-limit, limit)


def token_log_ratio(anchor: Anchor, logprob_BT: Tensor, batch: Batch) -> Tensor:
    """Return each token's unbounded log(policy / anchor) [B, T], with 0 at masked positions."""
    return neutral(logprob_BT - anchor_logprob(anchor, logprob_BT, batch), batch.mask_BT)


def anchor_logprob(anchor: Policy, logprob_BT: Tensor, batch: Batch) -> Tensor:
    """Return the anchor's log-probabilities [B, T].

    If the batch has none for the anchor, the result is the current policy's log-probabilities, detached.
    """
    anchor_BT = {
        "current": None,
        "rollout": batch.rollout_logprob_BT,
        "behavior": batch.behavior_logprob_BT,
        "proximal": batch.proximal_logprob_BT,
    }[anchor]
    return logprob_BT.detach() if anchor_BT is None else anchor_BT
