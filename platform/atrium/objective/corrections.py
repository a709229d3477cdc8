"""How a mismatch between the engine's and the trainer's distribution is repaired.

A correction is a detached factor [B, T] on every term of the policy's loss, a function of the log-ratio
between the behavior policy (the trainer's numbers) and the rollout policy (the engine's).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atrium.objective.batch import Needs, neutral, row_mean, row_sum


class Correction(ABC):
    """A factor that corrects for sampling from another distribution than the behavior policy's."""

    needs: ClassVar[Needs] = Needs(behavior_pass=True)

    @abstractmethod
    def factor(self, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
        """The factor [B, T], or None for 1 everywhere. `log_mismatch_BT` is log(behavior / rollout)."""


@dataclass(frozen=True)
class NoCorrection(Correction):
    """The engine's distribution is taken to be the trainer's."""

    needs: ClassVar[Needs] = Needs()

    def factor(self, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
        """None: nothing is corrected."""
        return None


@dataclass(frozen=True, kw_only=True)
class TruncatedImportance(Correction):
    """min(behavior / rollout, cap), per token or with the sequence's product (TIS, cap 2)."""

    cap: float
    level: Literal["token", "sequence"] = "token"

    def factor(self, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
        """The capped ratio at each token."""
        return _at_level(log_mismatch_BT, mask_BT, self.level).exp().clamp(max=self.cap)


@dataclass(frozen=True, kw_only=True)
class MaskedImportance(Correction):
    """behavior / rollout where it lies in [lower, upper], else 0 (IcePop, arXiv 2510.18855; MIS).

    With `keep_weight` False the factor is 1 inside: rejection without reweighting. `level`
    `sequence_mean` judges the geometric mean of the row, `sequence` its product.
    """

    lower: float
    upper: float
    level: Literal["token", "sequence", "sequence_mean"] = "token"
    keep_weight: bool = True

    def factor(self, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
        """The ratio, zeroed outside the bounds."""
        ratio_BT = _at_level(log_mismatch_BT, mask_BT, self.level).exp()
        inside_BT = (ratio_BT >= self.lower) & (ratio_BT <= self.upper)
        return torch.where(inside_BT, ratio_BT if self.keep_weight else 1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class SequenceRejection(Correction):
    """Drop rows whose mean mismatch, by k1, k2 or k3, exceeds a bound (arXiv 2512.23075)."""

    estimator: Literal["k1", "k2", "k3"]
    bound: float

    def factor(self, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
        """1 for kept rows and 0 for dropped ones."""
        x_BT = neutral(log_mismatch_BT, mask_BT)
        estimate_BT = {"k1": -x_BT, "k2": 0.5 * x_BT**2, "k3": torch.expm1(x_BT) - x_BT}[self.estimator]
        kept_B = row_mean(estimate_BT, mask_BT) <= self.bound
        return kept_B[:, None].to(x_BT.dtype).expand_as(x_BT)


def _at_level(log_mismatch_BT: Tensor, mask_BT: Tensor, level: str) -> Tensor:
    token_BT = neutral(log_mismatch_BT, mask_BT)
    if level == "sequence":
        return row_sum(token_BT, mask_BT)[:, None].expand_as(token_BT)
    if level == "sequence_mean":
        return row_mean(token_BT, mask_BT)[:, None].expand_as(token_BT)
    return token_BT


CORRECTIONS: dict[str, Callable[..., Correction]] = {
    "none": NoCorrection,
    "truncated_importance": TruncatedImportance,
    "masked_importance": MaskedImportance,
    "sequence_rejection": SequenceRejection,
}
