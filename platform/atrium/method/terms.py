"""The inputs of a surrogate, and its outputs: values at a batch's tokens and their gradient coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atrium.method.regions import Region

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SurrogateInputs:
    """The detached inputs of a surrogate: tensors [B, T], a trust region, and a constant per row.

    `gate_BT` is the ratio that the trust region reads, `weight_BT` the ratio that multiplies the advantage,
    `log_weight_BT` the weight's unbounded logarithm, and `logprob_BT` the policy's log-probability at the
    weight's level. `clipped_ratio_BT` is the constant that replaces the ratio of a clipped token.
    `rewarded_BT` is True in rows with a positive reward. `row_constant_B` is the result of
    `Surrogate.row_constant` for these rows.
    """

    gate_BT: Tensor
    weight_BT: Tensor
    log_weight_BT: Tensor
    logprob_BT: Tensor
    advantage_BT: Tensor
    rewarded_BT: Tensor
    clipped_ratio_BT: Tensor
    region: Region
    row_constant_B: Tensor | None = None

    @property
    def away_BT(self) -> Tensor:
        """Mask of infeasible tokens that an ascent step would push further out; see `Region.moving_away`."""
        return self.region.moving_away(self.gate_BT, self.advantage_BT)

    def runaway_BT(self, cap: float) -> Tensor:
        """Return a mask of tokens with A < 0 and a gate ratio of at least `cap`."""
        return (self.advantage_BT < 0.0) & (self.gate_BT >= cap)

    def by_sign(self, positive: float, negative: float) -> Tensor:
        """Return `positive` at tokens with A > 0 and `negative` at all others."""
        return choose(self.advantage_BT > 0.0, positive, negative, self.weight_BT)

    def cut_where(self, dropped_BT: Tensor, held_BT: Tensor | float | None = None) -> SurrogateOutput:
        """Return the terms of w A, with no gradient at the tokens in `dropped_BT`.

        The value of a dropped token is the constant `held_BT` times A. `held_BT` defaults to the clipped
        ratio.
        """
        value_BT = self.weight_BT * self.advantage_BT
        constant_BT = (self.clipped_ratio_BT if held_BT is None else held_BT) * self.advantage_BT
        return SurrogateOutput(
            coefficient_BT=value_BT.masked_fill(dropped_BT, 0.0),
            value_BT=constant_BT.where(dropped_BT, value_BT),
            dropped_BT=dropped_BT,
        )

    def uncut(self, coefficient_BT: Tensor, value_BT: Tensor | None = None) -> SurrogateOutput:
        """Return the terms of an objective that clips no token.

        If `value_BT` is None, the objective is `coefficient_BT` times log pi.
        """
        nowhere_BT = self.region.feasible_BT.new_zeros(self.region.feasible_BT.shape)
        return SurrogateOutput(coefficient_BT=coefficient_BT, value_BT=value_BT, dropped_BT=nowhere_BT)


@dataclass(frozen=True, kw_only=True)
class SurrogateOutput:
    """A surrogate's coefficient, its value (None for a score surrogate) and its clipped tokens, all [B, T].

    Examples
    --------
    PPO's clip of three tokens with advantage 1 at ratios 0.7, 1 and 1.3: the last is clipped.

    >>> import torch
    >>> ratio = torch.tensor([[0.7, 1.0, 1.3]])
    >>> region = Region.within(ratio, 0.8, 1.2)
    >>> x = SurrogateInputs(
    ...     gate_BT=ratio,
    ...     weight_BT=ratio,
    ...     log_weight_BT=ratio.log(),
    ...     logprob_BT=torch.zeros(1, 3),
    ...     advantage_BT=torch.ones(1, 3),
    ...     rewarded_BT=torch.ones(1, 3, dtype=torch.bool),
    ...     clipped_ratio_BT=region.crossed_bound(ratio),
    ...     region=region,
    ... )
    >>> output = x.cut_where(x.away_BT)
    >>> output.coefficient_BT, output.dropped_BT
    (tensor([[0.7000, 1.0000, 0.0000]]), tensor([[False, False,  True]]))
    """

    coefficient_BT: Tensor
    value_BT: Tensor | None
    dropped_BT: Tensor


def choose(condition_BT: Tensor, if_true: float, if_false: float, like: Tensor) -> Tensor:
    """Return `if_true` or `if_false` at each token, in the dtype of `like` (`torch.where` gives float32)."""
    return like.new_full(like.shape, if_true).masked_fill(~condition_BT, if_false)
