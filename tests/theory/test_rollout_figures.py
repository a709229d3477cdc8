"""Figures from stored rollouts: the tokens, their cuts, the effective sample size, and the map of slopes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.theory.conftest import shipped

from atrium.config.presets import read_preset
from atrium.document.document import Bars, Grid, Lines
from atrium.theory.gradients import coefficient_map
from atrium.theory.rollout_figures import rollout_picture, rollouts_document, tokens_of

ROW = {"logprobs": [-0.5, -1.0], "ratio": [1.5, 1.0], "clipped": [1, 0], "token_ids": [4, 7]}
STEPS = {
    1: [ROW, {**ROW, "ratio": [1.0, 1.0], "clipped": [0, 0]}],
    3: [{**ROW, "ratio": None}, {**ROW, "logprobs": [float("nan"), -1.0], "clipped": [1, -1]}],
}


def test_tokens_of_rows_without_a_trace_or_a_number_are_left_out():
    tokens = tokens_of(STEPS)
    assert tokens.ratio_N.tolist() == [1.5, 1.0, 1.0, 1.0, 1.0]
    assert tokens.clipped_N.tolist() == [1, 0, 0, 0, -1]
    assert tokens.position_N.tolist() == [1, 2, 1, 2, 2]
    np.testing.assert_allclose(tokens.moved_N[0], 0.5 * np.exp(-0.5) if 1.5 * np.exp(-0.5) < 1 else 0.0)
    assert tokens_of({1: [{**ROW, "ratio": None}]}) is None
    assert tokens_of({1: [{**ROW, "logprobs": [float("nan")] * 2}]}) is None


def test_effective_sample_size_is_that_of_products_of_ratios():
    tokens = tokens_of(STEPS)
    assert tokens.effective_by_step == pytest.approx({1: 2.5**2 / (1.5**2 + 1.0) / 2, 3: 1.0})


def test_a_picture_has_six_panels_with_the_tokens_that_were_cut():
    figures = rollout_picture("one", read_preset("grpo").method, tokens_of(STEPS), {4: "\\boxed{"}).figures
    assert [type(one) for one in figures] == [Lines, Lines, Lines, Lines, Bars, Grid]
    assert [row.name for row in figures[4].rows] == ["'\\boxed{'", "token 7"]
    upper = figures[1].series[3]
    assert upper.name == "upper bound"
    assert set(upper.y) == {1.2}


def test_the_document_counts_tokens_and_cuts():
    (row,) = rollouts_document({"one": tokens_of(STEPS)}, {"one": {}}).sections[0].tables[0].rows
    assert row.cells[1] == 5
    assert row.cells[2].value == pytest.approx(0.2)


def test_slopes_end_at_the_window_and_where_a_probability_would_exceed_one():
    found = coefficient_map(shipped("grpo"), (1.5, 1.1, 1.0, 0.9, 0.5), (0.1, 0.95))
    assert found == ((0.0, 0.0), (pytest.approx(1.1), 0.0), (1.0, 1.0), (pytest.approx(0.9),) * 2, (0.0, 0.0))
