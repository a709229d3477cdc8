"""The trust region at a batch's tokens, which a divergence returns and a surrogate reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    Bound: TypeAlias = float | Tensor


@dataclass(frozen=True, kw_only=True)
class RegionInputs:
    """The inputs of a divergence: [B, T] tensors without gradient; log-ratios are 0 at masked positions.

    `ratio_BT` is the gate, the ratio that the trust region reads. `token_log_ratio_BT` is each token's
    log-ratio to the gate's anchor, and `anchor_logprob_BT` the anchor's log-probability. `divergence_BT` is
    the divergence between the next-token distributions of anchor and policy, or None if it is not needed.
    `bounds` is the result of `Divergence.prepare_bounds`, [2] or None.
    """

    ratio_BT: Tensor
    token_log_ratio_BT: Tensor
    anchor_logprob_BT: Tensor
    mask_BT: Tensor
    divergence_BT: Tensor | None = None
    bounds: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Region:
    """A trust region at a batch's tokens.

    `lower` and `upper` are the window's bounds on the ratio, as numbers or per token [B, T]; both are 1 if
    the divergence has no window. `feasible_BT` says whether each token satisfies the constraint. `widths` are
    the distances below and above 1 at which the constraint binds. They are larger than 1 - `lower` and
    `upper` - 1 if the window is cut off at ratio 0 or probability 1. None stands for 1 - `lower` and `upper`
    - 1.

    Examples
    --------
    >>> import torch
    >>> region = Region.within(torch.tensor([[0.7, 1.0, 1.3]]), 0.8, 1.2)
    >>> region.feasible_BT
    tensor([[False,  True, False]])
    """

    feasible_BT: Tensor
    lower: Bound = 1.0
    upper: Bound = 1.0
    widths: tuple[Bound, Bound] | None = None

    @classmethod
    def within(
        cls, ratio_BT: Tensor, lower: Bound, upper: Bound, widths: tuple[Bound, Bound] | None = None
    ) -> Region:
        """Return the region of tokens with lower <= w <= upper."""
        feasible_BT = (ratio_BT >= lower) & (ratio_BT <= upper)
        return cls(lower=lower, upper=upper, widths=widths, feasible_BT=feasible_BT)

    def moving_away(self, gate_BT: Tensor, advantage_BT: Tensor) -> Tensor:
        """Return a mask [B, T] of infeasible tokens that an ascent step moves further out: A (w - 1) > 0.

        For any constraint C, dropping the gradient of exactly these tokens gives the gradient of min(w A,
        clip_C(w) A) (arXiv 2602.05494, Theorem 4.1 for windows on the ratio).
        """
        return ~self.feasible_BT & (advantage_BT * (gate_BT - 1.0) > 0.0)

    def crossed_bound(self, gate_BT: Tensor) -> Tensor:
        """Return the upper bound [B, T] at ratios above 1, and the lower bound elsewhere."""
        lower, upper = self.bounds_like(gate_BT)
        return upper.where(gate_BT > 1.0, lower)

    def bounds_like(self, ratio_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and upper bounds as tensors of the ratio's dtype, [B, T] or zero-dimensional."""
        return _as_tensor(self.lower, ratio_BT), _as_tensor(self.upper, ratio_BT)

    def widths_like(self, ratio_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return both widths as tensors of the ratio's dtype, [B, T] or zero-dimensional."""
        if self.widths is not None:
            return _as_tensor(self.widths[0], ratio_BT), _as_tensor(self.widths[1], ratio_BT)
        lower, upper = self.bounds_like(ratio_BT)
        return 1.0 - lower, upper - 1.0


def _as_tensor(bound: Bound, like: Tensor) -> Tensor:
    # `new_full` is filled on the GPU; a new tensor would be copied there while the host waits.
    return like.new_full((), bound) if isinstance(bound, int | float) else bound.to(like)
