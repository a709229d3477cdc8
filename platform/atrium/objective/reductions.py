"""How tokens become one number: the factor that each row's token terms carry in the loss.

Every reduction is a factor per row, found from the minibatch's totals in `prepare`, so that a loss is
additive over micro-batches and ranks and never depends on which rows travelled together.
Rows without tokens count nowhere. Rows whose group has no signal count where `Batch` still holds them.

The classes of `atrium.method.reductions` say what each of them averages; they are executed here.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from atrium.method.reductions import (
    GroupUnbiasedTokenSum,
    Reduction,
    SequenceMeanTokenMean,
    SequenceMeanTokenSum,
    TokenMean,
)
from atrium.objective.advantages import group_sum
from atrium.objective.batch import Sum


@singledispatch
def row_factor(reduction: Reduction, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    """The factor [B] (float64) that multiplies the sum of each row's token terms."""
    raise TypeError(f"{type(reduction).__name__} is executed nowhere: register a function with `row_factor`")


@row_factor.register
def _(reduction: TokenMean, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    total = sum_over_ranks(num_tokens_B.double().sum()).clamp(min=1.0)
    return torch.ones_like(num_tokens_B, dtype=torch.float64) / total


@row_factor.register
def _(reduction: SequenceMeanTokenMean, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    rows = _num_rows(num_tokens_B, sum_over_ranks)
    return 1.0 / (num_tokens_B.double().clamp(min=1.0) * rows)


@row_factor.register
def _(reduction: SequenceMeanTokenSum, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    rows = _num_rows(num_tokens_B, sum_over_ranks) * reduction.constant
    return torch.ones_like(num_tokens_B, dtype=torch.float64) / rows


@row_factor.register
def _(reduction: GroupUnbiasedTokenSum, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    # 1 / ((k - 1) x the number of groups), k being the size of the row's group.
    counts_B = (num_tokens_B > 0).double()
    size_B = group_sum(counts_B, group_B)
    groups = sum_over_ranks((counts_B / size_B.clamp(min=1.0)).sum()).clamp(min=1.0)
    return 1.0 / ((size_B - 1.0).clamp(min=1.0) * groups)


def _num_rows(num_tokens_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    return sum_over_ranks((num_tokens_B > 0).double().sum()).clamp(min=1.0)
