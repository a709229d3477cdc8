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


def page():
    return " ".join((DOCS / "same_methods.md").read_text(encoding="utf-8").split())


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


def simulated_share(correct_SP, num_pairs=2000):
    """The share of significant pairs where runs differ by a shift of log-odds and by sampling alone.

    Problems have the log-odds of their mean over runs, shrunk by half an answer; the shift's deviation makes
    the deviation of scores over runs.
    """
    draw = np.random.default_rng(0)
    total_P = correct_SP.sum(axis=0) * NUM_ANSWERS
    num = len(correct_SP) * NUM_ANSWERS
    odds_P = np.log((total_P + 0.5) / (num - total_P + 0.5))
    chance_P = 1.0 / (1.0 + np.exp(-odds_P))
    sampling = (chance_P * (1.0 - chance_P)).sum() / NUM_ANSWERS / len(chance_P) ** 2
    variance = max(correct_SP.mean(axis=1).var(ddof=1) - sampling, 0.0)
    shift = np.sqrt(variance) / (chance_P * (1.0 - chance_P)).mean()
    odds_2NP = odds_P + shift * draw.standard_normal((2, num_pairs, 1))
    found_2NP = draw.binomial(NUM_ANSWERS, 1.0 / (1.0 + np.exp(-odds_2NP))) / NUM_ANSWERS
    return np.mean(stats.ttest_rel(*found_2NP, axis=1).pvalue < 0.05)


def test_runs_of_two_methods_with_equal_gradients_are_equal():
    for outcome in ("reward", "late", "test"):
        assert set(differences("once", outcome)) == {0.0}


def test_the_page_states_the_differences_with_sixteen_updates():
    for outcome in ("reward", "late"):
        mean, low, high = interval(differences("sixteen", outcome))
        assert f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" in page()


def test_the_page_states_how_often_protocols_call_runs_of_one_method_different():
    others, significant = shares_called_different(correct_SP())
    ahead, gain = best_against_last()
    assert f"| {others:.0%} |".replace("%", " %") in page()
    assert f"| {significant:.0%} |".replace("%", " %") in page()
    assert f"| {ahead:.0%}, by {gain:.1f} points |".replace("%", " %") in page()
    assert f"| {simulated_share(correct_SP()):.0%} |".replace("%", " %") in page()
    assert f"{len(correct_SP())} runs" in page()
