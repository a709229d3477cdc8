"""The histogram of ratios: every token counted once, quantiles within their bin, extremes and NaN held."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from atrium.method.ratio_histogram import (
    NUM_BINS,
    NUM_BINS_PER_SIDE,
    SIGNS,
    count_ratios,
    log_ratio_edges,
    ratio_quantile,
)


def counted(ratios, *, advantage=1.0, dtype=torch.float64):
    ratio_BT = torch.tensor([ratios], dtype=dtype)
    return count_ratios(ratio_BT, torch.full_like(ratio_BT, advantage), torch.ones_like(ratio_BT).bool())


@pytest.mark.parametrize(("advantage", "sign"), [(2.0, "positive"), (-0.1, "negative"), (0.0, "zero")])
def test_tokens_are_counted_under_the_sign_of_their_advantage(advantage, sign):
    counts = counted([0.5, 1.0, 1.5], advantage=advantage)
    assert counts.shape == (len(SIGNS), NUM_BINS)
    assert {name: int(row.sum()) for name, row in zip(SIGNS, counts, strict=True)} == {
        name: 3 if name == sign else 0 for name in SIGNS
    }


def test_a_ratio_falls_into_the_bin_whose_edges_hold_it():
    edges = log_ratio_edges()
    assert (np.diff(edges) > 0).all()
    log_ratios = np.linspace(-19.0, 19.0, 701)
    for log_ratio in log_ratios:
        place = int(counted([math.exp(log_ratio)])[0].argmax())
        assert edges[place] <= log_ratio <= edges[place + 1]


def test_masked_positions_are_not_counted_even_where_they_hold_nan():
    ratio_BT = torch.tensor([[1.2, torch.nan, torch.inf]])
    counts = count_ratios(
        ratio_BT, torch.full_like(ratio_BT, torch.nan), torch.tensor([[True, False, False]])
    )
    assert counts.sum() == 1


def test_whatever_a_ratio_is_it_has_a_bin():
    counts = counted([0.0, math.exp(-60.0), math.exp(60.0), math.inf, math.nan])
    assert counts[0, 0] == 2
    assert counts[0, -1] == 3


@pytest.mark.parametrize("spread", [1e-3, 0.05, 0.5, 4.0])
def test_quantiles_are_those_of_the_tokens_to_within_a_bin(spread):
    generator = torch.Generator().manual_seed(1)
    log_ratio_N = spread * torch.randn(4000, generator=generator, dtype=torch.float64) + 0.1 * spread
    counts_N = counted(log_ratio_N.exp().tolist())[0].numpy()
    for share in (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0):
        exact = float(log_ratio_N.quantile(share))
        assert math.log(ratio_quantile(counts_N, share)) == pytest.approx(exact, rel=0.05, abs=5e-5)


def test_on_policy_every_quantile_is_exactly_one():
    counts_N = counted([1.0, 1.0, 1.0 + 1e-7], dtype=torch.float32)[0].numpy()
    assert counts_N[NUM_BINS_PER_SIDE] == 3
    assert [ratio_quantile(counts_N, share) for share in (0.01, 0.5, 0.99)] == [1.0, 1.0, 1.0]


def test_nothing_has_no_quantile():
    with pytest.raises(ValueError, match="an empty histogram has no quantile"):
        ratio_quantile(np.zeros(NUM_BINS, np.int64), 0.5)


@pytest.mark.parametrize("name", ["grpo_kl", "gspo", "dppo_binary_kl", "gvpo", "rpg_reinforce_urkl", "bapo"])
def test_a_loss_and_all_that_it_measures_move_nothing_to_the_host(
    compose_method, make_case, monkeypatch, name
):
    objective, case = compose_method(name).objective, make_case(0)
    batch = objective.with_advantages(case.batch)
    prepared = objective.prepare(batch, case.policy, objective.initial_state())
    for reading in (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "nonzero",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
    ):
        monkeypatch.setattr(torch.Tensor, reading, lambda *_: pytest.fail("the loss waits for the device"))
    output = objective.loss(batch, case.policy, prepared)
    monkeypatch.undo()
    assert output.ratio_counts.sum() == batch.mask_BT.sum()
