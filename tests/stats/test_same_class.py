"""The outcomes of two methods with equal gradients, and what protocols make of runs of one method.

`docs/same_methods.md` states these numbers; they follow from `docs/outcomes/same_class.csv`.
"""

from __future__ import annotations

import csv
from functools import cache
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from scipy import stats

DOCS = Path(__file__).resolve().parents[2] / "docs"
LAST_FIVE = ("val_4", "val_6", "val_8", "val_10", "val_12")
NUM_ANSWERS = 4


@cache
def outcomes():
    with (DOCS / "outcomes" / "same_class.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(row["arm"], int(row["seed"])): row for row in rows}


def page(name="same_methods"):
    return " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split())


def differences(kind, outcome):
    """GSPO less GRPO by seed, in points."""
    seeds = sorted(seed for arm, seed in outcomes() if arm == f"gspo_{kind}")
    pairs = [[outcomes()[f"{name}_{kind}", seed][outcome] for name in ("gspo", "grpo")] for seed in seeds]
    return [100.0 * (float(gspo) - float(grpo)) for gspo, grpo in pairs]


def interval(values):
    mean, half = np.mean(values), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return mean, mean - half, mean + half


def correct_SP():
    """Shares of right answers of every A/A run to every problem."""
    rows = [row["correct_of_4"] for (arm, _), row in sorted(outcomes().items()) if arm == "grpo_once"]
    return np.array([[int(digit) for digit in row] for row in rows]) / NUM_ANSWERS


def shares_called_different(correct_SP):
    """Of all pairs: with other scores, and with p < 5 % in a paired t test over problems."""
    pairs = list(combinations(correct_SP, 2))
    others = np.mean([one.mean() != other.mean() for one, other in pairs])
    significant = np.mean([stats.ttest_rel(one, other).pvalue < 0.05 for one, other in pairs])
    return others, significant


def best_against_last():
    """Of all ordered pairs: how often the best of five is ahead of the last, and by how many points."""
    rows = [row for (arm, _), row in sorted(outcomes().items()) if arm == "grpo_once"]
    gains = [
        max(float(one[name]) for name in LAST_FIVE) - float(other["val_12"])
        for one, other in permutations(rows, 2)
    ]
    return np.mean(np.array(gains) > 0.0), 100.0 * np.mean(gains)


def variances(correct_SP):
    """Variances of a run's answers to a problem: sampling, the run's own level, and what is left of both."""
    sampling = (correct_SP * (1.0 - correct_SP)).mean() / (NUM_ANSWERS - 1)
    level = correct_SP.mean(axis=1).var(ddof=1) - sampling / correct_SP.shape[1]
    return sampling, level, correct_SP.var(axis=0, ddof=1).mean() - sampling - level


def simulated_share(correct_SP, *, has_own_problems, num_pairs=2000):
    """The share of significant pairs where runs differ by a shift of log-odds and by sampling.

    Problems have the log-odds of their mean over runs, shrunk by half an answer. The shift's deviation makes
    that of the runs' levels; with `has_own_problems`, log-odds also differ by run and problem.
    """
    draw = np.random.default_rng(0)
    total_P = correct_SP.sum(axis=0) * NUM_ANSWERS
    num = len(correct_SP) * NUM_ANSWERS
    odds_P = np.log((total_P + 0.5) / (num - total_P + 0.5))
    slope_P = 1.0 / (2.0 + np.exp(odds_P) + np.exp(-odds_P))
    _, level, own = variances(correct_SP)
    shift = np.sqrt(level) / slope_P.mean()
    odds_2NP = odds_P + shift * draw.standard_normal((2, num_pairs, 1))
    if has_own_problems:
        odds_2NP = odds_2NP + np.sqrt(own / (slope_P**2).mean()) * draw.standard_normal(odds_2NP.shape)
    found_2NP = draw.binomial(NUM_ANSWERS, 1.0 / (1.0 + np.exp(-odds_2NP))) / NUM_ANSWERS
    return np.mean(stats.ttest_rel(*found_2NP, axis=1).pvalue < 0.05)


def interval_over_runs(correct_SP, num_draws=200):
    """The 95 % interval of the share of significant pairs, by drawing runs; pairs of one run are left out."""
    draw, num = np.random.default_rng(0), len(correct_SP)
    place_2N = np.triu_indices(num, 1)
    p_NN = np.ones((num, num))
    p_NN[place_2N] = stats.ttest_rel(*correct_SP[np.array(place_2N)], axis=1).pvalue
    is_found_NN = np.minimum(p_NN, p_NN.T) < 0.05
    shares = []
    for _ in range(num_draws):
        drawn = draw.integers(0, num, num)
        shares.append(is_found_NN[np.ix_(drawn, drawn)][np.not_equal.outer(drawn, drawn)].mean())
    return np.quantile(shares, (0.025, 0.975))


def test_runs_of_two_methods_with_equal_gradients_are_equal():
    for outcome in ("reward", "late", "test"):
        assert set(differences("once", outcome)) == {0.0}


def test_the_page_states_the_differences_with_sixteen_updates():
    for outcome in ("reward", "late"):
        mean, low, high = interval(differences("sixteen", outcome))
        for name in ("same_methods", "gradient_classes"):
            assert f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" in page(name)


def test_the_page_states_how_often_protocols_call_runs_of_one_method_different():
    others, significant = shares_called_different(correct_SP())
    ahead, gain = best_against_last()
    assert f"| {others:.0%} |".replace("%", " %") in page()
    assert f"| {significant:.0%} |".replace("%", " %") in page()
    for share in (others, significant, ahead):
        assert f"| {share:.0%} |".replace("%", " %") in page("gradient_classes")
    assert f"| {ahead:.0%}, by {gain:.1f} points |".replace("%", " %") in page()
    for has_own_problems in (False, True):
        share = simulated_share(correct_SP(), has_own_problems=has_own_problems)
        assert f"| {share:.0%} |".replace("%", " %") in page()
    low, high = interval_over_runs(correct_SP())
    assert f"interval of {100 * low:.0f} to {100 * high:.0f} %" in page()
    sampling, level, own = np.array(variances(correct_SP())) / sum(variances(correct_SP()))
    assert (
        f"{sampling:.0%} is sampling, {level:.0%} is the level of the run, and {own:.0%}"
        in page().replace(" %", "%")
    )
    assert f"{len(correct_SP())} runs" in page()
