"""Outcomes of curves compared by seed."""

from __future__ import annotations

import numpy as np
import pytest

from atrium.compare.curve_contrasts import curve_contrast


def test_an_interval_of_paired_differences_is_t_over_seeds():
    found = curve_contrast([0.5, 0.6, 0.4, 0.7], [0.4, 0.5, 0.35, 0.55])
    assert found.difference_S == pytest.approx([0.1, 0.1, 0.05, 0.15])
    half = 3.1824463 * np.std([0.1, 0.1, 0.05, 0.15], ddof=1) / 2.0
    assert found.interval == pytest.approx((0.1 - half, 0.1 + half))
    assert found.sign == 1


def test_the_effect_of_a_seed_on_both_arms_cancels():
    seed_S = np.random.default_rng(0).normal(scale=10.0, size=8)
    noise_S = np.random.default_rng(1).normal(scale=0.01, size=8)
    found = curve_contrast(seed_S + noise_S - 0.1, seed_S)
    assert found.interval.high - found.interval.low < 0.05
    assert found.sign == -1


def test_contrasts_judged_together_have_wider_intervals():
    alone, together = (curve_contrast([0.1, 0.2, 0.4], [0.0] * 3, num_together=num) for num in (1, 9))
    assert together.interval.low < alone.interval.low < alone.interval.high < together.interval.high


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_nothing_is_claimed_from_one_seed_or_seeds_that_do_not_differ(num_seeds):
    found = curve_contrast([0.5] * num_seeds, [0.25] * num_seeds)
    assert (found.difference, found.interval, found.sign) == (0.25, None, 0)


def test_arms_of_unequal_seeds_are_not_compared():
    with pytest.raises(ValueError, match="same seeds"):
        curve_contrast([0.1, 0.2], [0.1])
