"""How tokens become one number: the factor that each row's token terms carry in the loss.

Every reduction is a factor per row, found from the minibatch's totals in `prepare`, so that a loss is
additive over micro-batches and ranks and never depends on which rows travelled together.
Rows without tokens count nowhere. Rows whose group has no signal count where `Batch` still holds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atrium.objective.advantages import group_sum
from atrium.objective.batch import Needs, Sum


class Reduction(ABC):
    """A way to average tokens."""

    needs: ClassVar[Needs] = Needs()

    @abstractmethod
    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
        """The factor [B] (float64) that multiplies the sum of each row's token terms."""


@dataclass(frozen=True)
class TokenMean(Reduction):
    """The mean over all tokens of the minibatch (DAPO, arXiv 2503.14476, eq. 12)."""

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
        """1 / the number of tokens of the minibatch."""
        total = sum_over_ranks(num_tokens_B.double().sum()).clamp(min=1.0)
        return torch.ones_like(num_tokens_B, dtype=torch.float64) / total


@dataclass(frozen=True)
class SequenceMeanTokenMean(Reduction):
    """The mean over rows of each row's mean over its tokens (GRPO, arXiv 2402.03300, eq. 3)."""

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
        """1 / (the row's tokens x the number of rows with tokens)."""
        rows = _num_rows(num_tokens_B, sum_over_ranks)
        return 1.0 / (num_tokens_B.double().clamp(min=1.0) * rows)


@dataclass(frozen=True, kw_only=True)
class SequenceMeanTokenSum(Reduction):
    """The mean over rows of each row's sum over its tokens, divided by a constant.

    The constant is the maximum length in Dr. GRPO (arXiv 2503.20783); 1 gives the plain sum.
    """

    constant: float = 1.0

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
        """1 / (the constant x the number of rows with tokens)."""
        rows = _num_rows(num_tokens_B, sum_over_ranks) * self.constant
        return torch.ones_like(num_tokens_B, dtype=torch.float64) / rows


@dataclass(frozen=True)
class GroupUnbiasedTokenSum(Reduction):
    """The mean over groups of the group's token sum divided by its size less one (GVPO's 1 / (k - 1)).

    Sizes and groups are counted over rows with tokens.
    """

    needs: ClassVar[Needs] = Needs(whole_groups=True)

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
        """1 / ((k - 1) x the number of groups), k being the size of the row's group."""
        counts_B = (num_tokens_B > 0).double()
        size_B = group_sum(counts_B, group_B)
        groups = sum_over_ranks((counts_B / size_B.clamp(min=1.0)).sum()).clamp(min=1.0)
        return 1.0 / ((size_B - 1.0).clamp(min=1.0) * groups)


def _num_rows(num_tokens_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    return sum_over_ranks((num_tokens_B > 0).double().sum()).clamp(min=1.0)


REDUCTIONS: dict[str, Callable[..., Reduction]] = {
    "token_mean": TokenMean,
    "sequence_mean_token_mean": SequenceMeanTokenMean,
    "sequence_mean_token_sum": SequenceMeanTokenSum,
    "group_unbiased_token_sum": GroupUnbiasedTokenSum,
}
