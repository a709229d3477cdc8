"""Method parts that combine other parts of the same axis.

A product multiplies corrections, `by_sign` selects one of two surrogates, and a prefix budget limits the sum
of divergences over a token's prefix. These classes are declared after all other kinds, including those of
plugins, since they may combine any of them.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from atrium.base.section import Frac, NonNegative, Positive
from atrium.method import minibatch_windows, reward_regression, token_windows  # noqa: F401 - declare kinds
from atrium.method.batch import Batch, neutral
from atrium.method.corrections import Correction
from atrium.method.divergences import Divergence
from atrium.method.needs import Needs
from atrium.method.regions import Region, RegionInputs
from atrium.method.surrogates import Gradient, Surrogate
from atrium.method.terms import SurrogateInputs, SurrogateOutput, choose

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN_RATIO = (math.sqrt(5.0) - 1.0) / 2.0


class CorrectionProduct(Correction):
    """The product of several corrections: a token is kept if all of them keep it.

    A list of corrections is read as their product. Each correction reads all trained tokens, not only those
    that the other corrections keep, so their order does not matter.
    """

    kind: Literal["product"] = "product"
    of: Annotated[list[Correction], Field(min_length=2, max_length=16)]
    """Corrections that are multiplied."""

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        for step in self.of:
            if step.kind in ("none", "product"):
                raise ValueError(
                    f"a correction with kind={step.kind} cannot be multiplied; remove it from the list"
                )
        return self

    @property
    def steps(self) -> tuple[Correction, ...]:
        """The corrections that are multiplied."""
        return tuple(self.of)

    @property
    def needs(self) -> Needs:
        """The combined needs of the multiplied corrections."""
        return reduce(Needs.__or__, (step.needs for step in self.of))

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor:
        """Raise `TypeError`: the steps may compare different policies, so a product has no single factor."""
        raise TypeError("a product has no single factor; call factor on each of its steps")


class BySign(Surrogate):
    """Two surrogates: one for tokens with a positive advantage (or reward), the other for all other tokens.

    UP-GRPO uses `reinforce` for positive advantages and `clip` for all others (arXiv 2607.06987, eq. 15).
    """

    kind: Literal["by_sign"] = "by_sign"
    of: Literal["advantage", "reward"] = "advantage"
    """Number whose sign decides: a token's advantage, or its completion's reward."""
    positive: Surrogate
    """Surrogate for positive numbers."""
    negative: Surrogate
    """Surrogate for 0 and negative numbers."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        for name, part in (("positive", self.positive), ("negative", self.negative)):
            if part.regresses:
                raise ValueError(
                    f"{name}.kind must be a surrogate of single tokens, got {part.kind}, which compares "
                    "whole groups"
                )
        return self

    @property
    def _parts(self) -> tuple[Surrogate, Surrogate]:
        return self.positive, self.negative

    @property
    def reads(self) -> Literal["nothing", "feasible", "bounds"]:  # type: ignore[override]
        """The larger of the two surrogates' `reads`, in the order `nothing` < `feasible` < `bounds`."""
        order: tuple[Literal["nothing", "feasible", "bounds"], ...] = ("nothing", "feasible", "bounds")
        return max((part.reads for part in self._parts), key=order.index)

    @property
    def reads_widths(self) -> bool:  # type: ignore[override]
        """Whether either surrogate divides by the widths of the trust region."""
        return any(part.reads_widths for part in self._parts)

    @property
    def needs(self) -> Needs:
        """The needs of both surrogates, plus rewards if `of` is `reward`."""
        both = self.positive.needs | self.negative.needs
        return both | Needs(rewards=True) if self.of == "reward" else both

    @property
    def form(self) -> Gradient:
        """The gradient path of both surrogates, or `score` (a detached weight) if their paths differ."""
        return self.positive.form if self.positive.form == self.negative.form else "score"

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the terms of the surrogate that the sign selects at each token."""
        is_positive_BT = x.rewarded_BT if self.of == "reward" else x.advantage_BT > 0.0
        positive, negative = self.positive.terms(x), self.negative.terms(x)
        value_BT = None
        if positive.value_BT is not None and negative.value_BT is not None:
            value_BT = positive.value_BT.where(is_positive_BT, negative.value_BT)
        return SurrogateOutput(
            coefficient_BT=positive.coefficient_BT.where(is_positive_BT, negative.coefficient_BT),
            value_BT=value_BT,
            dropped_BT=positive.dropped_BT.where(is_positive_BT, negative.dropped_BT),
        )


class PrefixBudget(Divergence):
    """A budget for each token's divergence, and one for the sum of divergences over its prefix (CPPO).

    `of` defines the divergence D_t of a row's t-th trained token, t = 1..n, and the budget delta. Tokens have
    weights v_t = 1 - (1 - w_min) (t - 1) / max(n - 1, 1) (the same weights in another order with `order:
    shuffled`) and weighted divergences Z_t = v_t D_t. The prefix has a budget b per token: `scale` times the
    `quantile` of the row's D_t, clamped to the range from `prefix_delta` to `ceiling` times `prefix_delta`.
    If `quantile` is None, b is `prefix_delta`. A token is feasible if Z_t <= delta and Z_t <= delta + sum_{s
    < t} (b v_s - Z_s). Source: arXiv 2606.10968, equations 8 to 11 and 22.
    """

    kind: Literal["prefix_budget"] = "prefix_budget"
    of: Divergence
    """Divergence of a token, with its budget."""
    w_min: Frac
    """Weight of the last token's divergence; the first one's is 1."""
    order: Literal["forward", "shuffled"] = "forward"
    """Order of the weights: `forward` gives earlier tokens larger ones; `shuffled`, as a control, spreads the
    same weights over the row (token t is ranked by the fractional part of 0.618 (t - 1))."""
    prefix_delta: NonNegative
    """Minimum budget per token of the prefix (m)."""
    quantile: Frac | None = 0.9
    """Quantile of the row's divergences that sets the budget of the prefix; null to use `prefix_delta`."""
    scale: Positive = 1.0
    """Factor that multiplies `quantile` of the divergences."""
    ceiling: Annotated[float, Field(ge=1.0, le=1e6)] = 2.0
    """Maximum budget per token of the prefix, in multiples of `prefix_delta`."""
    has_window: ClassVar[bool] = False
    measures_tokens: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_inner(self) -> Self:
        if not self.of.measures_tokens:
            known = [kind for kind, one in Divergence.kinds.items() if getattr(one, "measures_tokens", False)]
            raise ValueError(
                f"of.kind must be a per-token divergence ({', '.join(known)}), got {self.of.kind}"
            )
        return self

    @property
    def of_single_tokens(self) -> bool:  # type: ignore[override]
        """Whether the inner divergence depends on the sampled token's probability as well as on the ratio."""
        return self.of.of_single_tokens

    @property
    def needs(self) -> Needs:
        """The needs of the inner divergence."""
        return self.of.needs

    def window(self) -> None:
        """Return None: a token's bounds depend on the tokens before it."""

    def with_budget(self, budget: float) -> dict[str, Any] | None:
        """Return the settings with `budget` for the inner divergence.

        Returns None if the inner divergence has no budget.
        """
        inner = self.of.with_budget(budget)
        return None if inner is None else {**self.model_dump(), "of": inner}

    def region(self, x: RegionInputs) -> Region:
        """Return the region of the tokens within both budgets."""
        value_BT = neutral(self.of.token_divergence(x), x.mask_BT)
        num_B1 = x.mask_BT.sum(dim=1, keepdim=True)
        weight_BT = 1.0 - (1.0 - self.w_min) * self._rank(x.mask_BT) / (num_B1 - 1).clamp(min=1)
        weight_BT = weight_BT.to(value_BT) * x.mask_BT
        spent_BT = weight_BT * value_BT
        earned_BT = weight_BT * self._prefix_budget(value_BT, x.mask_BT)
        saved_BT = earned_BT - spent_BT
        saved_BT = saved_BT.cumsum(dim=1) - saved_BT
        delta_BT = choose(x.token_log_ratio_BT < 0.0, *self.of.budgets, value_BT)
        return Region(feasible_BT=spent_BT <= delta_BT.minimum(delta_BT + saved_BT))

    def _rank(self, mask_BT: Tensor) -> Tensor:
        """Return the rank [B, T] of each trained token within its row; rank 0 has the largest weight."""
        num_before_BT = mask_BT.cumsum(dim=1) - mask_BT.long()
        if self.order == "forward":
            return num_before_BT
        # Multiples of the golden ratio fill [0, 1) evenly; a row's order depends on its trained tokens alone.
        key_BT = (num_before_BT.double() * _GOLDEN_RATIO).frac().masked_fill(~mask_BT, 2.0)
        return key_BT.argsort(dim=1).argsort(dim=1)

    def _prefix_budget(self, value_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return each row's b [B, 1], the prefix budget per token."""
        if self.quantile is None:
            return value_BT.new_full((len(value_BT), 1), self.prefix_delta)
        if not value_BT.numel():
            return value_BT.new_zeros((len(value_BT), 1))
        trained_BT = value_BT.masked_fill(~mask_BT, math.nan)
        quantile_B1 = trained_BT.nanquantile(self.quantile, dim=1, keepdim=True)
        quantile_B1 = quantile_B1.where(mask_BT.any(dim=1, keepdim=True), 0.0)
        return (self.scale * quantile_B1).clamp(self.prefix_delta, self.ceiling * self.prefix_delta)


def read_corrections(data: Any) -> Any:  # noqa: ANN401 - unvalidated input
    """Convert a list of corrections to the settings of their product; return other input unchanged.

    A list of one correction becomes that correction, an empty list becomes `kind: none`.
    """
    if not isinstance(data, list | tuple):
        return data
    if len(data) == 1:
        return data[0]
    return {"kind": "product", "of": list(data)} if data else {"kind": "none"}
