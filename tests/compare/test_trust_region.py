from __future__ import annotations

import json
import math

import numpy as np
import pytest

from atrium.compare.ratio_records import ratios_of
from atrium.compare.trust_region import (
    bin_edges,
    binned,
    counts_of_record,
    evenly_chosen,
    no_counts,
    window_in_use,
)
from atrium.method.windows import UNBOUNDED, Window, window

RECORD = {
    "edges": [0.5, 0.999, 1.001, 1.1, 1.5, 2.0],
    "positive": [0, 1, 0, 1, 3],
    "negative": [2, 0, 0, 0, 0],
}
COUNTS = counts_of_record({**RECORD, "zero": [0, 1, 0, 0, 0]})


def test_the_histogram_shows_the_window_and_loses_no_token():
    edges = bin_edges(COUNTS, Window(0.8, 1.25))
    assert edges[0] < math.log(0.8)
    assert edges[-1] > math.log(1.25)
    count_SB = binned(COUNTS, edges)
    assert count_SB.sum(axis=1) == pytest.approx([5, 2, 1])
    middle = len(edges) // 2 - 1
    assert edges[middle] < 0 < edges[middle + 1], "ratios of 1 lie inside of a bin"
    assert count_SB[0, middle] == pytest.approx(1)


def test_ratios_of_exactly_one_have_a_histogram_and_none_has_none():
    counts = no_counts()
    counts[0, counts.shape[1] // 2] = 5
    assert binned(counts, bin_edges(counts, UNBOUNDED)).max() == 5
    assert bin_edges(no_counts(), UNBOUNDED) is None


def test_counts_in_wide_bins_are_spread_over_finer_bins():
    record = {"step": 1, "edges": [0.5, 1.0, 2.0], "positive": [4, 8], "negative": [0, 2], "zero": [0, 0]}
    counts = counts_of_record(record)
    np.testing.assert_allclose(counts.sum(axis=1), [12, 2, 0])
    lower = counts[0][: counts.shape[1] // 2].sum()
    assert lower == pytest.approx(4)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"edges": [1.0], "positive": [], "negative": [], "zero": []} | {"positive": "x"},
        {"edges": [1.0, 0.5], "positive": [1], "negative": [1], "zero": [1]},
        {"edges": [1.0, 2.0], "positive": [1, 2], "negative": [1], "zero": [1]},
        {"edges": [0.0, 2.0], "positive": [1], "negative": [1], "zero": [1]},
    ],
)
def test_a_damaged_record_counts_nothing(record):
    with np.errstate(divide="ignore"):
        assert counts_of_record(record) is None


def test_records_are_read_by_step_or_together_past_broken_lines(tmp_path):
    path = tmp_path / "ratios.jsonl"
    line = {"edges": [0.5, 2.0], "positive": [1], "negative": [2], "zero": [3]}
    lines = [json.dumps({"step": step, **line}, separators=(",", ":")) for step in (1, 2, 12)]
    path.write_text("\n".join([*lines, "broken", '{"step":13,"ed']))
    assert ratios_of(path, None).sum() == pytest.approx(18)
    assert ratios_of(path, 2).sum() == pytest.approx(6)
    assert ratios_of(path, 3) is None
    assert ratios_of(tmp_path / "none.jsonl", None) is None


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        ({"kind": "none"}, UNBOUNDED),
        ({"kind": "kl3", "delta": 0.0231}, window("kl3", 0.0231)),
        ({"kind": "alpha", "delta": 0.1, "alpha": 0.5}, window("alpha", 0.1, alpha=0.5)),
        ({"kind": "asymmetric_ratio", "epsilon_low": 0.2, "epsilon_high": 0.28}, Window(0.8, 1.28)),
        ({"kind": "window", "lower": 0.0, "upper": 1.2}, Window(0.0, 1.2)),
    ],
)
def test_a_constant_window_follows_from_the_settings(divergence, expected):
    assert window_in_use(divergence) == (expected, "")


@pytest.mark.parametrize(
    ("divergence", "reason"),
    [
        ({"kind": "state_kl", "delta": 0.1}, "no constant window"),
        ({"kind": "kl3"}, "invalid"),
        ({"kind": "kl3", "delta": "x"}, "invalid"),
        (None, "cannot be read"),
    ],
)
def test_without_a_constant_window_the_reason_is_given(divergence, reason):
    found, why = window_in_use(divergence)
    assert found is None
    assert reason in why


def test_chosen_steps_are_evenly_spaced_and_include_the_last():
    assert evenly_chosen([1, 2, 3], 5) == [1, 2, 3]
    chosen = evenly_chosen(range(1000), 10)
    assert (len(chosen), chosen[0], chosen[-1]) == (10, 0, 999)
