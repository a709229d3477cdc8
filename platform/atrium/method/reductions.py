"""How tokens become one number.

Denominators count every token that is trained on, also those whose gradient is cut, masked or rejected.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from atrium.base.section import Axis, Positive
from atrium.method.needs import NOTHING, Needs


class Reduction(Axis, axis=True):
    """How tokens become one number: the factor that each row's token terms carry in the loss.

    `divides_by` names the total of an update that the sums are divided by.
    """

    divides_by: ClassVar[Literal["tokens", "rows", "groups"]] = "rows"

    @property
    def needs(self) -> Needs:
        """The needs of the reduction; none unless it says so."""
        return NOTHING


class TokenMean(Reduction):
    """The mean over all tokens of the minibatch (DAPO, arXiv 2503.14476, eq. 12)."""

    kind: Literal["token_mean"] = "token_mean"
    divides_by: ClassVar = "tokens"


class SequenceMeanTokenMean(Reduction):
    """The mean over completions of their mean over tokens (GRPO, arXiv 2402.03300, eq. 3)."""

    kind: Literal["sequence_mean_token_mean"] = "sequence_mean_token_mean"


class SequenceMeanTokenSum(Reduction):
    """The mean over completions of their sum over tokens, divided by a constant.

    The constant is the maximum length in Dr. GRPO (arXiv 2503.20783); 1 gives the plain sum.
    """

    kind: Literal["sequence_mean_token_sum"] = "sequence_mean_token_sum"
    constant: Positive = 1.0
    """What every sum is divided by."""


class GroupUnbiasedTokenSum(Reduction):
    """The mean over groups of token sums divided by the group size less one (GVPO's 1 / (k - 1)).

    Sizes and groups are counted over rows with tokens.
    """

    kind: Literal["group_unbiased_token_sum"] = "group_unbiased_token_sum"
    divides_by: ClassVar = "groups"

    @property
    def needs(self) -> Needs:
        """Whole groups: their size is part of the factor."""
        return Needs(whole_groups=True)
