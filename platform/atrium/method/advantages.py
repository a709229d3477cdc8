"""How good was a completion: a baseline, a scale and a kind of return."""

from __future__ import annotations

from typing import Literal

from atrium.base.section import NonNegative, Number, PositiveFrac, Section


class Advantage(Section):
    """How good was a completion: (return - baseline - offset) / (scale + epsilon)."""

    baseline: Literal["none", "group_mean", "leave_one_out", "batch_mean"] = "group_mean"
    """What is subtracted from the return: GRPO's group mean, RLOO's mean of the group's others, the mean of
    the batch, or nothing."""
    offset: Number = 0.0
    """A constant added to the baseline (AsymRE's delta V, arXiv 2506.20520)."""
    scale: Literal["none", "group_std", "batch_std", "token_std"] = "none"
    """What the difference is divided by: GRPO's deviation of the group, the deviation of all rewards of the
    batch (Lite-PPO), whitening over all tokens of the batch (REINFORCE++), or nothing (Dr. GRPO)."""
    ddof: Literal[0, 1] = 1
    """1 divides variances by n - 1 (verl, TRL), 0 by n; a group of one has deviation 0 under both."""
    epsilon: NonNegative = 1e-6
    """Added to the deviation; for token_std to the variance, as verl does. With 0, equal rewards, whose
    deviation is 0, give advantage 0."""
    returns: Literal["sequence", "token"] = "sequence"
    """One return per completion, or a discounted one per token: the reward at the last token plus per-token
    penalties, summed backwards (REINFORCE++, arXiv 2501.03262)."""
    discount: PositiveFrac = 1.0
    """The discount of token returns."""

    @property
    def is_grouped(self) -> bool:
        """Whether a group of one has advantage 0."""
        return self.baseline in ("group_mean", "leave_one_out") or self.scale == "group_std"
