"""Reductions of the loss terms of all tokens to one number.

A reduction is a factor for each row, which multiplies the sum of the row's token terms. Factors are computed
from totals of the whole minibatch, before the loss. The loss is therefore additive over micro-batches and
ranks and does not depend on how rows are divided among them.

Denominators count every trained token, including tokens whose gradient is clipped, masked or rejected. With
`counts: kept`, they leave out rejected tokens. Rows without tokens are not counted. Rows whose group has no
signal are counted if `Batch` still contains them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from atrium.base.section import Positive
from atrium.method.advantages import group_sum
from atrium.method.batch import Sum, local_sum
from atrium.method.needs import Needs, Part

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The denominators of means: the numbers of tokens, rows and groups in one update.

    Rows without tokens, and groups that have only such rows, are not counted. Other trainers may provide
    their own totals, in which `tokens` may also be a denominator [B] for each row.

    Examples
    --------
    >>> import torch
    >>> counted = count_totals(torch.tensor([3, 2, 0]), torch.tensor([7, 7, 8]))
    >>> [int(total) for total in (counted.tokens, counted.rows, counted.groups)]
    [5, 2, 1]
    """

    tokens: Tensor | float
    rows: Tensor | float
    groups: Tensor | float


def count_totals(num_tokens_B: Tensor, group_B: Tensor, sum_over_ranks: Sum = local_sum) -> Totals:
    """Return the numbers of tokens, rows and groups on all ranks together, each at least 1.

    A group must not span ranks.
    """
    import torch

    counts_B = (num_tokens_B > 0).double()
    groups = (counts_B / group_sum(counts_B, group_B).clamp(min=1.0)).sum()
    totals = sum_over_ranks(torch.stack([num_tokens_B.double().sum(), counts_B.sum(), groups]))
    tokens, rows, groups = totals.clamp(min=1.0)
    return Totals(tokens=tokens, rows=rows, groups=groups)


class Reduction(Part, axis=True):
    """A reduction of the loss terms of all tokens to one number.

    `divides_by` names the field of `Totals` by which sums are divided.
    """

    counts: Literal["all", "kept"] = "all"
    """Tokens that denominators count. `all`: all trained tokens. `kept`: all except those that
    `algorithm.correction` rejects, which the regularizer then ignores too, as in verl."""
    divides_by: ClassVar[Literal["tokens", "rows", "groups"]] = "rows"

    @abstractmethod
    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
        """Return the factor [B] (float64) that multiplies the sum of each row's token terms."""


class TokenMean(Reduction):
    """The mean over all tokens of the minibatch (DAPO, arXiv 2503.14476, eq. 12)."""

    kind: Literal["token_mean"] = "token_mean"
    divides_by: ClassVar = "tokens"

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
        """Return 1 / (number of tokens in the update)."""
        return num_tokens_B.double().new_ones(num_tokens_B.shape) / totals.tokens


class SequenceMeanTokenMean(Reduction):
    """The mean over completions of each completion's mean over tokens (GRPO, arXiv 2402.03300, eq. 3)."""

    kind: Literal["sequence_mean_token_mean"] = "sequence_mean_token_mean"

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
        """Return 1 / (number of tokens in the row x number of rows in the update)."""
        return 1.0 / (num_tokens_B.double().clamp(min=1.0) * totals.rows)


class SequenceMeanTokenSum(Reduction):
    """The mean over completions of each completion's sum over tokens, divided by a constant.

    The constant is the maximum length in Dr. GRPO (arXiv 2503.20783). With a constant of 1, the sums are not
    divided.
    """

    kind: Literal["sequence_mean_token_sum"] = "sequence_mean_token_sum"
    constant: Positive = 1.0
    """Divisor of every sum."""

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
        """Return 1 / (constant x number of rows in the update)."""
        return num_tokens_B.double().new_ones(num_tokens_B.shape) / (totals.rows * self.constant)


class GroupUnbiasedTokenSum(Reduction):
    """Each group's token sum divided by k - 1, averaged over groups, where k is the group's size (GVPO).

    Group sizes and the number of groups count only rows with tokens.
    """

    kind: Literal["group_unbiased_token_sum"] = "group_unbiased_token_sum"
    divides_by: ClassVar = "groups"

    needs: ClassVar = Needs(whole_groups=True)
    """Whole groups: their size is part of the factor."""

    def row_factor(self, num_tokens_B: Tensor, group_B: Tensor, totals: Totals) -> Tensor:
        """Return 1 / ((k - 1) x number of groups in the update), where k is the size of the row's group.

        In a group of one, k - 1 counts as 1.
        """
        size_B = group_sum((num_tokens_B > 0).double(), group_B)
        return 1.0 / ((size_B - 1.0).clamp(min=1.0) * totals.groups)
