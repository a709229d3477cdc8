"""The headline of a comparison, and its alerts: at most four short lines, each with its explanation."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.compare.documents import alerts_of, answer_of, document_of, notes_of

from atrium.compare.run_comparison import compare_runs
from atrium.runs.status import RunState

_STUDY = Path(__file__).resolve().parents[2] / "docs" / "outcomes" / "smollm2_verdict.csv"
WINDOWS = {"atr": 0.1, "clip": 0.2, "none": 0.9, "random": 0.3}


def headline(comparison):
    return answer_of(comparison)[0]


def test_headline_has_the_score_and_the_lead_over_the_next_arm_with_its_interval(make_run):
    with _STUDY.open() as file:
        rows = list(csv.DictReader(file))
    runs = [
        make_run(
            row["arm"],
            int(row["seed"]),
            {("test", 4): list(map(int, row["correct_of_4"]))},
            divergence={"kind": "ratio", "delta": WINDOWS[row["arm"]]},
        )
        for row in rows
    ]
    comparison = compare_runs(runs, baseline="none")
    first, counts, *_ = answer_of(comparison)
    assert first == "atr is highest at 66.4 %, +3.9 points [−7.4, +15.1] over clip: not decided"
    assert counts == "none of 3 beat none, 1 is worse"
    assert headline(compare_runs(runs, baseline="clip")) == first, "the baseline does not matter"
    pair = compare_runs(runs, baseline="clip").headline_pairs[0]
    assert pair.new_seeds_and_problems == pytest.approx((-0.0740, 0.1510), abs=1e-4)


def test_headline_names_the_best_of_several_arms_and_the_better_of_two(make_study):
    runs = make_study({"grpo": 0.0, "atr": 0.3, "clip_higher": 0.15}, num_seeds=4)
    many = headline(compare_runs(runs))
    assert many.startswith("atr is highest at ")
    assert many.endswith("] over clip_higher: shown to be the best")
    two = headline(compare_runs([run for run in runs if "clip_higher" not in run.name]))
    assert two.startswith("atr is higher at ")
    assert two.endswith("] over grpo: better")


def test_headline_before_a_verdict_has_no_interval(make_study):
    said = headline(compare_runs(make_study({"grpo": 0.0, "atr": 0.2}, num_seeds=2)))
    assert said.startswith("atr is higher at ")
    assert said.endswith(" points over grpo (two seeds: not judged)")
    assert "[" not in said


def test_arms_of_one_method_have_no_headline(make_run):
    window = {"kind": "window", "lower": 0.8, "upper": 1.2}
    runs = [
        make_run("grpo", 0, {("exam", 4): [1, 2]}),
        make_run("b", 0, {("exam", 4): [2, 2]}, divergence=window),
    ]
    assert headline(compare_runs(runs)) == "grpo and b are the same method: their windows [l, u] are equal"


def test_more_than_four_alerts_become_four_lines_and_the_weakest_ones_share_the_last(make_run):
    def counts(start, end):
        return {("exam", 0): [start] * 20, ("exam", 4): [min(4, end + place % 2) for place in range(20)]}

    slow = {"optimizer": {"learning_rate": 3e-4}, "rollout": {"group_size": 4}}
    fast = {"optimizer": {"learning_rate": 1e-3}, "rollout": {"group_size": 8}}
    runs = [make_run("grpo", seed, counts(2, 2), draws="shared", **slow) for seed in range(3)]
    runs += [make_run("atr", seed, counts(3, 1), draws="shared", **fast) for seed in range(3)]
    runs += [make_run("clip_higher", 0, counts(2, 2), **slow)]
    runs += [make_run("atr", 3, counts(3, 1), state=RunState.FAILED, until=1, **fast)]
    found = alerts_of(compare_runs(runs))
    texts = [text for text, _ in found]
    assert texts[:3] == [
        "runs without a result: 1 of atr",
        "confounds: the arms differ in optimizer.learning_rate, rollout.group_size",
        "one seed, not judged: clip_higher",
    ]
    assert len(texts) == 4
    assert texts[3].startswith("also: intervals too narrow: shared random draws in grpo, atr; ")
    assert "collapsed: 3 of 3 runs of atr" in texts[3]
    details = dict(found)
    assert "failed at step 1 of 4: as the test wants" in details[texts[0]]
    assert "optimizer.learning_rate is 3e-4 in grpo and clip_higher, 1e-3 in atr" in details[texts[1]]
    assert "up to three times too narrow" in details[texts[3]]
    assert "score below its start in 3 runs" in details[texts[3]]


def test_commits_are_counted_if_every_run_has_its_own(make_study):
    runs = make_study({"grpo": 0.0, "atr": 0.1}, num_seeds=2)
    for place, run in enumerate(runs):
        run.provenance_file.write_text(json.dumps({"code": {"commit": f"{place}" * 40}}))
    notes = [note.text for note in document_of(compare_runs(runs)).notes]
    assert "also different: commit (4 different values)" in notes
    assert not any("2222" in text for text, _ in alerts_of(compare_runs(runs)))


def test_a_missing_run_is_stated_once(make_study, make_run):
    runs = make_study({"grpo": 0.0, "atr": 0.2}, num_seeds=3)
    missing = make_run("atr", 3, {}, state=RunState.FAILED, until=1)
    comparison = compare_runs([*runs, missing])
    assert not any(missing.name in note for note in notes_of(comparison))
    [detail] = [detail for text, detail in alerts_of(comparison) if text.startswith("runs without a result")]
    assert missing.name in detail


@pytest.mark.parametrize(("searched", "seeds"), [([0, 1, 7], "0, 1"), ([7], None)])
def test_runs_on_which_a_sweep_chose_its_winner_are_biased_by_selection(
    searched, seeds, make_study, tmp_path
):
    runs = make_study({"grpo": 0.0, "atr": 0.2}, num_seeds=2)
    sweep = tmp_path / "runs" / "sweeps" / "study"
    sweep.mkdir(parents=True)
    definition = {"name": "study", "seeds": searched, "final": {"seeds": [100]}}
    (sweep / "sweep.json").write_text(json.dumps({"definition": definition}))
    alerts = dict(alerts_of(compare_runs(runs)))
    detail = alerts.get("scores biased by selection: sweep study chose its winner with these runs", "")
    assert (f"chosen on seeds {seeds}, so" in detail) == bool(seeds)
    assert bool(detail) == bool(seeds)
