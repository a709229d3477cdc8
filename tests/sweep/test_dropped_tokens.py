"""Budgets that drop as many tokens as a clip range: the count, the match, and what cannot be matched."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atrium.base.errors import ConfigError
from atrium.base.records import RatioHistogram
from atrium.method.windows import DIVERGENCES, Window, window
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState
from atrium.sweep.definition import DerivedConfig
from atrium.sweep.dropped_tokens import SignedRatios, budget_for_dropped, dropped_share, ratios_of_run
from atrium.sweep.space import derive

_EDGES = np.exp(np.linspace(-3.0, 3.0, 1201))


def _ratios(scale: float, num_tokens: int = 20_000) -> SignedRatios:
    log_ratios = np.random.default_rng(0).laplace(0.0, scale, num_tokens)
    positive, negative = (
        np.histogram(part, np.log(_EDGES))[0].astype(float) for part in np.array_split(log_ratios, 2)
    )
    return SignedRatios(edges=_EDGES, positive=positive, negative=negative, num_tokens=float(num_tokens))


def test_a_window_drops_high_ratios_of_positive_and_low_ratios_of_negative_advantages():
    ratios = SignedRatios(
        edges=np.array([0.5, 0.8, 1.0, 1.2, 1.5]),
        positive=np.array([10.0, 20.0, 30.0, 4.0]),
        negative=np.array([6.0, 10.0, 10.0, 5.0]),
        num_tokens=100.0,
    )
    assert math.isclose(dropped_share(ratios, Window(0.8, 1.2)), 0.10)
    assert dropped_share(ratios, Window(0.0, math.inf)) == 0.0


@pytest.mark.parametrize("kind", [kind for kind in DIVERGENCES if kind != "k1_signed"])
def test_a_matched_budget_drops_the_share_that_the_clip_range_drops(kind):
    ratios = _ratios(scale=0.08)
    wanted = dropped_share(ratios, window("ratio", 0.2))
    found = dropped_share(ratios, window(kind, budget_for_dropped(kind, 0.2, ratios)))
    assert wanted > 0.01
    assert math.isclose(found, wanted, rel_tol=1e-3)


def test_a_range_that_drops_nothing_has_no_match():
    with pytest.raises(ValueError, match="drops none"):
        budget_for_dropped("kl3", 0.9, _ratios(scale=0.01))


def test_the_ratios_of_a_run_are_summed_over_steps_with_different_edges(tmp_path):
    folder = RunFolder.create(tmp_path, "matched", "grpo", 0)
    tracker = RunFolderWriter(folder, rollouts_every_num_steps=None, rollouts_max_mb=1)
    tracker.ratios(
        1, RatioHistogram(edges=(0.5, 0.9, 1.0, 1.4), positive=(1, 2, 3), negative=(4, 0, 0), zero=(0, 1, 0))
    )
    tracker.ratios(2, RatioHistogram(edges=(0.9, 1.0, 1.4), positive=(5, 7), negative=(0, 2), zero=(0, 0)))
    tracker.end(RunState.FINISHED)
    ratios = ratios_of_run(str(folder.path))
    assert ratios.num_tokens == 25.0
    assert ratios.positive.tolist() == [1.0, 7.0, 10.0]
    assert ratios.negative.tolist() == [4.0, 0.0, 2.0]


def test_a_derived_setting_says_which_run_it_cannot_be_measured_on(tmp_path):
    folder = RunFolder.create(tmp_path, "matched", "grpo", 0)
    derived = DerivedConfig(function="budget_for_dropped", of=0.2, run=str(folder.path))
    with pytest.raises(ConfigError, match=r"divergence\.delta .*has no distribution of ratios"):
        derive("divergence.delta", derived, {})
    missing = DerivedConfig(function="budget_for_dropped", of=0.2, run=str(tmp_path / "nowhere"))
    with pytest.raises(
        ConfigError, match=r"divergence\.delta cannot be derived: the ratios of .* cannot be read"
    ):
        derive("divergence.delta", missing, {})


def test_a_dropped_share_needs_a_run_and_nothing_else_takes_one():
    with pytest.raises(ValueError, match="run must be set for the function budget_for_dropped"):
        DerivedConfig(function="budget_for_dropped", of=0.2)
    with pytest.raises(ValueError, match="run must be set for the function budget_for_dropped"):
        DerivedConfig(function="budget_for_upper", of=1.2, run="runs/x")
