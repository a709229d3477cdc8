"""Windows of divergences, against the objective that trains with them."""

from __future__ import annotations

import math

import pytest
import torch

from atrium.config.presets import divergence_from, names, read_divergence
from atrium.method.regions import RegionInputs

PROBABILITIES = [0.003, 0.05, 0.2, 0.5, 0.8, 0.99]


def region(divergence, ratio, probability):
    ratio_BT = torch.tensor([[ratio]], dtype=torch.float64)
    inputs = RegionInputs(
        ratio_BT=ratio_BT,
        token_log_ratio_BT=ratio_BT.log(),
        anchor_logprob_BT=torch.full_like(ratio_BT, math.log(probability)),
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
    )
    return divergence.region(inputs)


@pytest.mark.parametrize("name", names("divergence"))
def test_a_constant_window_is_the_one_that_trains(name):
    config = read_divergence(name)
    window = config.window()
    if window is not None and config.kind != "balanced_window":
        trained = region(config, 1.0, 0.5)
        assert (trained.lower, trained.upper) == (window.lower, window.upper)


@pytest.mark.parametrize("name", [n for n in names("divergence") if read_divergence(n).has_token_windows])
@pytest.mark.parametrize("probability", PROBABILITIES)
def test_a_window_by_probability_is_the_one_that_trains(name, probability):
    config = read_divergence(name)
    window = config.window_at(probability)
    found = region(config, 1.0, probability)
    assert window.lower == pytest.approx(float(found.lower), rel=1e-8, abs=1e-12)
    assert window.upper == pytest.approx(float(found.upper), rel=1e-8)


@pytest.mark.parametrize("delta", [1e-4, 0.05, 2.0])
def test_the_binary_kl_reaches_its_budget_at_both_bounds(delta):
    config = divergence_from({"kind": "binary_kl", "delta": delta}, "test")
    for q in PROBABILITIES:
        window = config.window_at(q)
        for bound in (window.lower, window.upper):
            p = q * bound
            if 0.0 < p < 1.0 - 1e-9:
                kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
                assert kl == pytest.approx(delta, rel=1e-7)


def test_a_budget_goes_to_every_side_and_a_clip_range_has_none():
    assert read_divergence("binary_total_variation").with_budget(0.3) == {
        "kind": "binary_total_variation",
        "delta_low": 0.3,
        "delta_high": 0.3,
    }
    assert read_divergence("asymmetric_ratio").with_budget(0.3) is None


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1])
def test_a_probability_lies_between_0_and_1(probability):
    with pytest.raises(ValueError, match="probability"):
        read_divergence("binary_kl").window_at(probability)
