"""How tokens become one number: the factor that each row's token terms carry in the loss.

Every reduction is a factor per row, found from the minibatch's totals in `prepare`, so that a loss is
additive over micro-batches and ranks and never depends on which rows travelled together.
Rows without tokens count nowhere. Rows whose group has no signal count where `Batch` still holds them.

The classes of `atrium.method.reductions` say what each of them averages; they are executed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from atrium.method.batch import Sum, local_sum
from atrium.method.reductions import (
    GroupUnbiasedTokenSum,
    Reduction,
    SequenceMeanTokenMean,
    SequenceMeanTokenSum,
    TokenMean,
)
from atrium.objective.advantages import group_sum


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What means divide by: the tokens, rows and groups of everything that one update adds up.

    Rows without tokens, and groups of such, count nowhere. A trainer of another kind may bring its own.

    Examples
    --------
    >>> counted = count_totals(torch.tensor([3, 2, 0]), torch.tensor([7, 7, 8]))
    >>> [int(total) for total in (counted.tokens, counted.rows, counted.groups)]
    [5, 2, 1]
    """

    tokens: Tensor | float
    rows: Tensor | float
    groups: Tensor | float


def count_totals(num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum = local_sum) -> Totals:
    """The totals over all ranks, at least 1 each; groups never span ranks."""
    counts_B = (num_tokens_B > 0).double()
    groups = (counts_B / group_sum(counts_B, group_B).clamp(min=1.0)).sum()
    totals = sum_over_ranks(torch.stack([num_tokens_B.double().sum(), counts_B.sum(), groups]))
    tokens, rows, groups = totals.clamp(min=1.0)
    return Totals(tokens=tokens, rows=rows, groups=groups)


@singledispatch
def row_factor(reduction: Reduction, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
    """The factor [B] (float64) that multiplies the sum of each row's token terms."""
    raise TypeError(f"{type(reduction).__name__} is executed nowhere: register a function with `row_factor`")


@row_factor.register
def _(reduction: TokenMean, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
    return torch.ones_like(num_tokens_B, dtype=torch.float64) / totals.tokens


@row_factor.register
def _(reduction: SequenceMeanTokenMean, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
    return 1.0 / (num_tokens_B.double().clamp(min=1.0) * totals.rows)


@row_factor.register
def _(reduction: SequenceMeanTokenSum, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
    return torch.ones_like(num_tokens_B, dtype=torch.float64) / (totals.rows * reduction.constant)


@row_factor.register
def _(reduction: GroupUnbiasedTokenSum, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
    # 1 / ((k - 1) x the number of groups), k being the size of the row's group.
    size_B = group_sum((num_tokens_B > 0).double(), group_B)
    return 1.0 / ((size_B - 1.0).clamp(min=1.0) * totals.groups)
