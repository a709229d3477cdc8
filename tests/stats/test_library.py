"""`atrium.stats.compare`: plain arrays in, the verdicts and words of `atrium compare` out."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from atrium.stats import compare
from atrium.stats.arm_pairs import ScoredArms
from atrium.stats.comparison import TwoArms
from atrium.stats.simultaneous import Family

PAGE = Path(__file__).resolve().parents[2] / "docs" / "statistics_library.md"


def answers(effects, num_seeds=4, num_problems=40, num_samples=4):
    """Answers [M, S, P, K] of methods whose share of right answers differs by the effects."""
    generator = np.random.default_rng(0)
    difficulty = generator.uniform(0.1, 0.7, size=(1, 1, num_problems, 1))
    drawn = generator.random((len(effects), num_seeds, num_problems, num_samples))
    return (drawn < difficulty + np.reshape(effects, (-1, 1, 1, 1))).astype(float)


def test_a_real_difference_is_found_with_the_statistics_of_two_arms():
    scores = answers([0.0, 0.2])
    found = compare(scores, names=["grpo", "atr"])
    (pair,) = found.pairs
    assert (pair.baseline, pair.candidate, pair.verdict.kind) == ("grpo", "atr", "better")
    shares = scores.mean(axis=3)
    assert pair.comparison == TwoArms([shares[0]], [shares[1]]).compared()
    assert found.best == "atr"
    assert_allclose(found.scores["grpo"].value, shares[0].mean())
    assert str(found).splitlines() == [pair.words, "atr is shown to be the best"]
    assert found.notes == ()


def test_shares_a_mapping_and_answers_give_the_same():
    scores = answers([0.0, 0.2, 0.1])
    names = ["a", "b", "c"]
    by_answers = compare(scores, names=names)
    assert by_answers.pairs == compare(scores.mean(axis=3), names=names).pairs
    assert by_answers.pairs == compare(dict(zip(names, scores, strict=True))).pairs
    assert by_answers.pairs == compare(scores == 1.0, names=names).pairs
    assert compare(scores).pairs[1].candidate == "method 2"


def test_baseline_and_pairing_can_be_chosen():
    scores = answers([0.0, 0.2])
    (pair,) = compare(scores, names=["grpo", "atr"], baseline="atr", paired=False).pairs
    assert (pair.candidate, pair.verdict.kind) == ("grpo", "worse")
    assert pair.design == "unpaired: seeds 0–3 against 0–3"
    few = compare(scores[:, :2], paired=True, seeds={"method 0": [7, 5], "method 1": [7, 5]})
    assert few.pairs[0].design == "paired seeds 5, 7"
    assert few.pairs[0].verdict.kind == "two_seeds"
    assert compare(scores[:, :2]).pairs[0].design == "unpaired: seeds 0, 1 against 0, 1"


def test_missing_values_leave_out_seeds_and_problems_and_are_named():
    scores = answers([0.0, 0.2])
    whole = compare(scores[:, :3, 1:], names=["grpo", "atr"])
    scores[1, 3] = np.nan  # a run that did not finish
    scores[0, 1, 0] = np.nan  # a problem that was not answered
    found = compare(scores, names=["grpo", "atr"])
    assert found.num_problems == 39
    assert found.pairs[0].pairing.words == "paired seeds 0–2"
    assert found.pairs[0].comparison == whole.pairs[0].comparison
    assert found.notes == (
        "atr: 1 of 4 seeds have no answers",
        "1 of 40 problems are left out, since some seed has no answer",
    )
    one = answers([0.0, 0.2])
    one[0, 0, 0] = [1.0, 0.0, 0.0, np.nan]
    found = compare(one)
    assert_allclose(found.scores["method 0"].value_S[0], (one[0, 0, 1:].mean(axis=1).sum() + 1 / 3) / 40)
    assert found.notes == ("method 0: 1 of 640 answers are missing where others exist",)


def test_diverged_seeds_count_in_both_readings():
    scores = answers([0.0, 0.2])
    found = compare(scores, names=["grpo", "atr"], diverged={"atr": [3]})
    assert found.pairs[0].verdict.kind == "depends_on_diverged"
    assert found.best is None


def test_clusters_widen_the_interval_of_new_seeds_and_problems():
    shares = np.repeat(answers([0.0, 0.1], num_problems=10), 4, axis=2)
    clusters = [str(place // 4) for place in range(40)]
    alone, clustered = compare(shares), compare(shares, clusters=clusters)
    assert clustered.pairs[0].sources == "10 clusters"
    widths = [high - low for low, high in (one.pairs[0].new_seeds_and_problems for one in (alone, clustered))]
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ([[[0.5, 2.0]], [[0.5, 0.5]]], {}, r"values must be between 0 and 1"),
        ([[[0.5, np.inf]], [[0.5, 0.5]]], {}, r"values must be between 0 and 1"),
        ([[0.5], [0.5]], {}, r"seeds x problems \(x samples\), got \(1,\)"),
        ([[[0.5]]], {}, "at least two methods"),
        ([], {}, "at least two methods, got 0"),
        ({}, {}, "at least two methods, got 0"),
        (0.5, {}, r"seeds x problems \(x samples\), got \(\)"),
        ([[[0.5]], [[0.5]]], {"names": ["a"]}, "names must be 2 different names"),
        ([[[0.5]], [[0.5]]], {"names": ["a", "a"]}, "names must be 2 different names"),
        ([[[0.5]], [[0.5]]], {"baseline": "x"}, "unknown method 'x'; use one of method 0, method 1"),
        ([[[0.5]], [[np.nan]]], {}, "method 1: all values are NaN"),
        ([[[0.5, np.nan]], [[np.nan, 0.5]]], {}, "at least one problem must have an answer from every seed"),
        ([[[0.5]], [[0.5]]], {"clusters": ["x", "y"]}, "clusters must have 1 names"),
        (
            [[[0.5]], [[0.5]]],
            {"diverged": {"method 0": [4]}},
            "diverged has seed 4, which has no answers; remove it from diverged",
        ),
        ([[[0.5]], [[0.5]]], {"seeds": {"method 0": [1, 2]}}, "seeds must be 1 different numbers"),
        (
            [[[0.5], [0.1]], [[0.5], [np.nan]]],
            {"paired": True},
            "paired methods must have the same seeds; remove the others, or set paired=None",
        ),
        ({"a": [[0.5]], "b": [[0.5, 0.1]]}, {}, "all methods must have the same problems"),
        ({"a": [[0.5]], "b": [[0.5]]}, {"names": ["a", "b"]}, "remove names"),
    ],
)
def test_wrong_input_is_refused_with_its_reason(scores, options, message):
    with pytest.raises(ValueError, match=message):
        compare(scores, **options)


def test_a_single_arm_is_the_only_leader():
    scores = ScoredArms(
        values={"a": [np.full((2, 3), 0.5)]}, seeds={"a": (0, 1)}, family=Family(num_candidates=1)
    )
    assert scores.leaders({"a": [1]}) == ("a",)


def test_the_library_loads_numpy_and_scipy_alone():
    code = (
        "import sys\nfrom atrium.stats import compare\ncompare([[[0.5, 0.2]] * 3, [[0.7, 0.1]] * 3])\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'hydra', 'omegaconf', 'yaml', 'pyarrow', 'rich'}\n"
        "print(heavy & sys.modules.keys(), {m.split('.')[1] for m in sys.modules if m.startswith('atrium.')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "set() {'stats'}\n", done.stdout + done.stderr


def test_the_page_shows_what_its_examples_print():
    code = "\n".join(re.findall(r"^```pycon\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S))
    examples = doctest.DocTestParser().get_doctest(code, {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 10
    result = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(examples)
    assert result.failed == 0
