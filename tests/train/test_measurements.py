"""Adding up metrics: sums and counts, extremes, nothing at all, and one transfer for all of them."""

from __future__ import annotations

import pytest
import torch

from atrium import metrics
from atrium.train.measurements import Measurements


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
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: transfers.append(self.shape) or to_list(self))
    for name in ("item", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail("a transfer of its own"))
    measurements = Measurements()
    for _ in range(3):
        measurements.add_sums({quantity: _pair(1.0, 1) for quantity in metrics.CATALOGUE.values()})
    values = measurements.values()
    assert transfers == [(len(metrics.CATALOGUE), 2)]
    assert len(values) == len(metrics.CATALOGUE)
