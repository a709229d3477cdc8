"""Adding up metrics: sums and counts, extremes, nothing at all, and one transfer for all of them."""

from __future__ import annotations

import pytest
import torch

from atrium.base import metrics
from atrium.method.ratio_histogram import NUM_BINS, SIGNS, count_ratios
from atrium.train.measure.measurements import Measurements


def _pair(total, count):
    return torch.tensor(total), torch.tensor(count)


def test_means_are_over_all_things_counted_not_over_micro_batches():
    measurements = Measurements()
    measurements.add_sums({metrics.ENTROPY: _pair(2.0, 1)})
    measurements.add_sums({metrics.ENTROPY: _pair(1.0, 5)})
    measurements.add(metrics.ENTROPY, 6.0, 3)
    assert measurements.values() == {metrics.ENTROPY: 1.0}


def test_extremes_and_sums_combine_as_declared():
    measurements = Measurements()
    for value in (3.0, -1.0, 2.0):
        measurements.add_sums({metrics.RATIO_MAX: _pair(value, 4), metrics.RATIO_MIN: _pair(value, 4)})
        measurements.add(metrics.NUM_UPDATES, value)
    measurements.add(metrics.RATIO_MAX, 2.5)
    assert measurements.values() == {
        metrics.RATIO_MAX: 3.0,
        metrics.RATIO_MIN: -1.0,
        metrics.NUM_UPDATES: 4.0,
    }


def test_totals_of_tensors_add_up_in_double_precision():
    measurements = Measurements()
    for total in (2.0**25, 1.0, 1.0):
        measurements.add_sums({metrics.REWARD: (torch.tensor(total), torch.tensor(1))})
    assert measurements.values()[metrics.REWARD] == (2.0**25 + 2.0) / 3.0


def test_what_counted_nothing_is_left_out():
    measurements = Measurements()
    assert measurements.values() == {}
    measurements.add_sums({metrics.ENTROPY: _pair(0.0, 0), metrics.RATIO_MAX: _pair(-torch.inf, 0)})
    measurements.add(metrics.REWARD, 0.0, 0)
    assert measurements.values() == {}
    measurements.add(metrics.RATIO_MAX, 1.5)
    assert measurements.values() == {metrics.RATIO_MAX: 1.5}


def test_reading_twice_counts_nothing_twice_and_more_may_follow():
    measurements = Measurements()
    measurements.add_sums({metrics.ENTROPY: _pair(1.0, 1)})
    assert measurements.values() == measurements.values() == {metrics.ENTROPY: 1.0}
    measurements.add_sums({metrics.ENTROPY: _pair(3.0, 1)})
    assert measurements.values() == {metrics.ENTROPY: 2.0}


def test_all_quantities_reach_the_host_in_one_transfer(monkeypatch):
    transfers = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: transfers.append(self.shape) or cpu(self))
    for name in ("item", "tolist", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail("a transfer of its own"))
    measurements = Measurements()
    for _ in range(3):
        measurements.add_sums({quantity: _pair(1.0, 1) for quantity in metrics.CATALOGUE.values()})
        measurements.add_ratios(torch.ones(len(SIGNS), NUM_BINS, dtype=torch.int64))
    values = measurements.values()
    assert transfers == [(3 * 2 * len(metrics.CATALOGUE) + len(SIGNS) * NUM_BINS,)]
    assert len(values) == len(metrics.CATALOGUE)


def test_ratios_of_micro_batches_add_up_to_those_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    ratio_BT = torch.exp(0.2 * torch.randn(40, 30, generator=generator))
    advantage_BT = torch.randn(40, 1, generator=generator).round().expand(40, 30)
    mask_BT = torch.rand(40, 30, generator=generator) > 0.3
    whole, split = Measurements(), Measurements()
    whole.add_ratios(count_ratios(ratio_BT, advantage_BT, mask_BT))
    for part in (slice(0, 7), slice(7, 8), slice(8, 40)):
        split.add_ratios(count_ratios(ratio_BT[part], advantage_BT[part], mask_BT[part]))
        assert split.values()  # what was moved before is not lost
    assert split.ratio_histogram() == whole.ratio_histogram()
    assert split.values() == whole.values()
    histogram = whole.ratio_histogram()
    assert sum(histogram.positive) == (mask_BT & (advantage_BT > 0)).sum()
    assert sum(histogram.negative) == (mask_BT & (advantage_BT < 0)).sum()
    assert sum(histogram.zero) == (mask_BT & (advantage_BT == 0)).sum()
    assert len(histogram.edges) == len(histogram.positive) + 1
    assert histogram.positive[0] + histogram.negative[0] + histogram.zero[0] > 0
    for share, quantity in metrics.RATIO_QUANTILES.items():
        exact = ratio_BT[mask_BT].quantile(share).log()
        assert abs(torch.tensor(whole.values()[quantity]).log() - exact) <= 0.05 * exact.abs() + 2e-3


def test_without_ratios_there_is_no_distribution_and_no_quantile():
    measurements = Measurements()
    measurements.add(metrics.LOSS, 1.0)
    assert measurements.ratio_histogram() is None
    assert measurements.values() == {metrics.LOSS: 1.0}
