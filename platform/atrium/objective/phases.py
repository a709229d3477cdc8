"""What an objective's phases hand over: its state between steps, a minibatch's constants, a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from atrium.objective.diagnostics import Sums, TokenDetails
from atrium.objective.references import ReferenceState


@dataclass(frozen=True, kw_only=True)
class ObjectiveState:
    """What an objective carries from step to step; saved in every checkpoint."""

    entropy_coefficient: float = 0.0
    last_entropy: float | None = None
    reference: ReferenceState = field(default_factory=ReferenceState)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The state that `dataclasses.asdict` made a record of; `TypeError` for unknown names."""
        reference = ReferenceState(**record.get("reference", {}))
        return cls(**{**record, "reference": reference})


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The detached constants of a minibatch that its micro-batches share.

    Per row: the reduction's factor, and the surrogate's constant. Per token: what the token weight chose.
    For the whole minibatch: the window's bounds [2], where they depend on it, and the entropy bonus's
    coefficient.
    """

    row_factor_B: Tensor
    token_weight_BT: Tensor | None
    row_constant_B: Tensor | None
    entropy_coefficient: float
    bounds: Tensor | None = None

    def select(self, rows: Tensor, num_tokens: int | None = None) -> Self:
        """The constants of the given rows, cut to their first `num_tokens` tokens."""
        weight_BT, constant_B = self.token_weight_BT, self.row_constant_B
        return replace(
            self,
            row_factor_B=self.row_factor_B[rows],
            token_weight_BT=None if weight_BT is None else weight_BT[rows][:, :num_tokens],
            row_constant_B=None if constant_B is None else constant_B[rows],
        )


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """A micro-batch's share of the loss, what was measured on it, and the details per token.

    `ratio_counts` is what `atrium.objective.ratio_histogram` counts.
    """

    loss: Tensor
    sums: Sums
    ratio_counts: Tensor
    details: TokenDetails
