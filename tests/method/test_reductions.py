"""Every reduction against its definition, and rows without tokens, which count nowhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from atrium.method.batch import local_sum
from atrium.method.reductions import (
    GroupUnbiasedTokenSum,
    Reduction,
    SequenceMeanTokenMean,
    SequenceMeanTokenSum,
    TokenMean,
    count_totals,
)

NUM_TOKENS_B = torch.tensor([2, 4, 1, 3])
GROUP_B = torch.tensor([0, 0, 1, 1])


def factors(reduction, num_tokens_B, group_B, sum_over_ranks):
    totals = count_totals(num_tokens_B, group_B, sum_over_ranks)
    return reduction.row_factor(num_tokens_B, group_B, totals)


def reduced(reduction, value_BT, mask_BT, group_B):
    factor_B = factors(reduction, mask_BT.sum(dim=1), group_B, local_sum)
    return (factor_B[:, None] * value_BT * mask_BT).sum().item()


def test_reductions_are_their_definitions():
    mask_BT = torch.arange(4) < NUM_TOKENS_B[:, None]
    value_BT = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = [value_BT[row][mask_BT[row]] for row in range(4)]
    token_sums = torch.stack([row.sum() for row in rows])
    expected = {
        TokenMean(): torch.cat(rows).mean(),
        SequenceMeanTokenMean(): torch.stack([row.mean() for row in rows]).mean(),
        SequenceMeanTokenSum(constant=8.0): token_sums.mean() / 8,
        GroupUnbiasedTokenSum(): torch.stack([token_sums[:2].sum(), token_sums[2:].sum()]).mean(),
    }
    for reduction, value in expected.items():
        assert reduced(reduction, value_BT, mask_BT, GROUP_B) == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("kind", sorted(Reduction.kinds))
def test_rows_without_tokens_count_nowhere(kind):
    reduction = Reduction.build(kind)
    plain_B = factors(reduction, NUM_TOKENS_B, GROUP_B, local_sum)
    more_tokens_B = torch.cat([NUM_TOKENS_B, torch.tensor([0, 0])])
    more_B = factors(reduction, more_tokens_B, torch.tensor([0, 0, 1, 1, 1, 2]), local_sum)
    assert torch.equal(more_B[:4], plain_B)


@pytest.mark.parametrize("kind", sorted(Reduction.kinds))
def test_nothing_to_reduce_gives_finite_factors(kind):
    reduction = Reduction.build(kind)
    for num_tokens_B in (torch.zeros(3, dtype=torch.long), torch.zeros(0, dtype=torch.long)):
        factor_B = factors(reduction, num_tokens_B, torch.zeros_like(num_tokens_B), local_sum)
        assert factor_B.isfinite().all()


@pytest.mark.parametrize("kind", sorted(Reduction.kinds))
def test_reductions_share_their_denominators_over_ranks(kind, over_ranks):
    reduction = Reduction.build(kind)
    ranks = [
        partial(factors, reduction, NUM_TOKENS_B[rows], GROUP_B[rows]) for rows in (slice(0, 2), slice(2, 4))
    ]
    whole_B = factors(reduction, NUM_TOKENS_B, GROUP_B, local_sum)
    torch.testing.assert_close(torch.cat(over_ranks(ranks)), whole_B, rtol=1e-14, atol=0.0)
