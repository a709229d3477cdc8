"""The study of SmolLM2: its outcomes are complete, pages state its verdict, and fewer seeds give none."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

_FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "smollm2_verdict.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("smollm2_verdict", _FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(scores):
    """Rows of whole seeds by the scores of none, clip, atr and random."""
    arms = ("none", "clip", "atr", "random")
    return {
        (seed, arm): {"test": str(score)}
        for seed, own in enumerate(scores)
        for arm, score in zip(arms, own, strict=True)
    }


def test_recorded_runs_are_registered_and_their_scores_follow_from_their_answers(study):
    found = study.finished()
    assert len(study.missing({})) == len(found) == 20
    assert study.missing(found) == []
    for row in found.values():
        right = list(map(int, row["correct_of_4"]))
        assert len(right) == 200
        assert float(row["test"]) == pytest.approx(sum(right) / 800, abs=1e-4)


@pytest.mark.parametrize("page", ["designs.md", "gradient_classes.md"])
def test_pages_state_the_scores_and_the_verdict_of_the_recorded_runs(study, page):
    text = (_FILE.parents[1] / "docs" / page).read_text(encoding="utf-8")
    found = study.finished()
    names = {"atr": "ATR", "clip": "clip", "none": "no trust region", "random": "random rewards"}
    for arm, name in names.items():
        scores = [100 * float(row["test"]) for (_, one), row in sorted(found.items()) if one == arm]
        cells = [
            float(cell) for cell in re.search(rf"^\| {name} \| ([\d.| ]+) \|$", text, re.M)[1].split("|")
        ]
        assert cells == pytest.approx([*scores, sum(scores) / 5], abs=0.06)
    for line in study.verdicts(found):
        difference, verdict = re.search(r": (.*\]) points over 5 seeds, (.*)$", line).groups()
        assert re.search(rf"\| {re.escape(difference)} \|.*{verdict} \|$", text, re.M)


def test_two_seeds_decide_nothing(study):
    assert study.verdicts(rows([(0.4, 0.5, 0.5, 0.3)] * 2)) == [
        "2 complete seeds; fewer than 3 decide nothing"
    ]


def test_verdicts_tell_different_equivalent_and_undecided_arms_apart(study):
    scores = [(0.30, 0.50, 0.51, 0.3), (0.32, 0.51, 0.51, 0.3), (0.31, 0.52, 0.52, 0.3)]
    different, equivalent = study.verdicts(rows(scores))
    assert different.startswith("none - clip: -20.0 [")
    assert different.endswith("over 3 seeds, different")
    assert equivalent.endswith("equivalent")
    (undecided, _) = study.verdicts(rows([(0.5, 0.4, 0.4, 0.3), (0.3, 0.4, 0.4, 0.3), (0.4, 0.4, 0.4, 0.3)]))
    assert undecided.endswith("not decided")
