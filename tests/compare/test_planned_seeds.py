"""A planned number of seeds: no verdict before it, one verdict at it, and none that later seeds change."""

from __future__ import annotations

import json

import pytest
from tests.compare.documents import alerts_of, answer_of, files_of, tables_of

from atrium.base.errors import ConfigError
from atrium.cli.app import main
from atrium.cli.parser import CommandParser
from atrium.compare.document_sentences import paper_sentences
from atrium.compare.planned_seeds import NOT_PLANNED
from atrium.compare.run_comparison import compare_runs
from atrium.runs.status import RunState

EFFECTS = {"grpo": 0.0, "atr": 0.3}


def _compared(runs, **options):
    comparison = compare_runs(runs, baseline="grpo", **options)
    return comparison, comparison.headline_pairs[0]


def test_before_the_planned_number_there_is_an_estimate_and_no_verdict(make_study):
    comparison, pair = _compared(make_study(EFFECTS, planned_seeds=5))
    assert pair.verdict.kind == "planned"
    assert pair.verdict.words.startswith("3 of 5 planned seeds: no verdict yet; estimated difference +")
    assert pair.comparison.difference.new_seeds_and_problems is None
    assert answer_of(comparison)[-1] == "3 of 5 planned seeds"
    assert paper_sentences(comparison)[0].startswith("Nothing can be written about atr and grpo as methods")
    (rows,) = [rows for title, rows in tables_of(comparison).items() if title.startswith("Mean@4 on exam")]
    assert "better" not in str(rows)


@pytest.mark.parametrize(("num_planned", "has_interval"), [(3, True), (5, False)])
def test_curves_have_intervals_once_the_planned_seeds_are_finished(
    make_study, capsys, tmp_path, num_planned, has_interval
):
    for number, folder in enumerate(make_study(EFFECTS, planned_seeds=num_planned)):
        lines = [{"step": step, "rollout/reward": 0.01 * number**2 * step} for step in range(1, 5)]
        folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ["--area", "rollout/reward", "--until", "4", "--runs-dir", str(tmp_path / "runs"), "--no-files"]
    assert main(["compare", "study", "--baseline", "grpo", *asked]) == 0
    assert ("[" in capsys.readouterr().out.partition("Training: ")[2]) == has_interval


def test_seeds_beyond_the_plan_change_nothing_and_are_reported_apart(make_study):
    first = _compared(make_study(EFFECTS, planned_seeds=3))[1]
    comparison, pair = _compared(make_study(EFFECTS, num_seeds=5, experiment="longer", planned_seeds=3))
    assert pair.verdict == first.verdict
    assert pair.verdict.kind == "better"
    assert pair.comparison.difference == first.comparison.difference
    assert pair.pairing.words == "paired seeds 0–2"
    assert comparison.arms[1].arm.seeds == (0, 1, 2)
    [note] = [note for note in comparison.notes if "of atr" in note]
    assert note.startswith("beyond the 3 planned seeds of atr, in no score or verdict: seeds 3, 4, ")
    assert paper_sentences(comparison)[0].endswith(" 3 seeds per method were planned.")


def test_an_interim_verdict_uses_the_first_seeds_at_a_divided_level(make_study):
    _, alone = _compared(make_study(EFFECTS, planned_seeds=3))
    runs = make_study(EFFECTS, num_seeds=4, experiment="looks", planned_seeds=5, looks=[3, 5])
    comparison, pair = _compared(runs)
    assert pair.verdict.kind == "not_distinguishable"
    assert pair.pairing.words == "paired seeds 0–2"
    assert comparison.arms[1].arm.seeds == (0, 1, 2, 3)
    half = (
        alone.comparison.difference.new_seeds_and_problems.interval,
        pair.comparison.difference.new_seeds_and_problems.interval,
    )
    assert half[1].low < half[0].low
    assert answer_of(comparison)[-1] == "verdict at 3 of 5 planned seeds (planned looks: 3, 5)"


def test_the_first_run_decides_what_was_planned(make_study, make_run):
    runs = make_study(EFFECTS)
    later = make_study(EFFECTS, num_seeds=4, experiment="later", planned_seeds=5)[6:]
    comparison, pair = _compared([*runs, *later])
    assert pair.verdict.kind == "better"
    assert ("number of seeds not planned", NOT_PLANNED) in alerts_of(comparison)


def test_a_planned_run_that_failed_withholds_the_verdict_and_one_beyond_the_plan_does_not(
    make_study, make_run
):
    runs = make_study(EFFECTS, planned_seeds=3)
    beyond = make_run("atr", 7, {}, state=RunState.FAILED, until=1, planned_seeds=3)
    assert _compared([*runs, beyond])[1].verdict.kind == "better"
    one = make_study(EFFECTS, num_seeds=2, experiment="broken", planned_seeds=3)
    failed = make_run("atr", 2, {}, state=RunState.FAILED, until=1, experiment="broken", planned_seeds=3)
    counts = {("exam", 0): [1] * 40, ("exam", 4): [2] * 40}
    spare = [
        make_run(name, seed, counts, experiment="broken", planned_seeds=3)
        for seed in (2, 3)
        for name in ("grpo", "atr")
        if (name, seed) != ("atr", 2)
    ]
    assert _compared([*one, failed, *spare])[1].verdict.words.startswith(
        "2 of 3 planned seeds: no verdict yet"
    )
    left_out = {failed.name: "its disk was full"}
    assert _compared([*one, failed, *spare], leave_out=left_out)[1].verdict.kind != "planned"


def test_later_runs_count_and_are_not_beyond_the_plan_if_all_planned_runs_of_a_method_failed(make_run):
    counts = {("exam", 0): [1] * 40, ("exam", 4): [2] * 40}
    runs = [make_run("atr", seed, {}, state=RunState.FAILED, until=1, planned_seeds=3) for seed in range(3)]
    runs += [make_run("grpo", seed, counts, planned_seeds=3) for seed in range(3)]
    runs += [make_run("atr", seed, counts, planned_seeds=3) for seed in (3, 4)]
    comparison, _ = _compared(runs)
    assert comparison.arms[-1].arm.seeds == (3, 4)
    assert not [note for note in comparison.notes if note.startswith("beyond the 3 planned seeds of atr")]


def test_every_output_format_says_that_the_number_of_seeds_was_not_planned(make_study, capsys, tmp_path):
    runs = make_study(EFFECTS)
    comparison, _ = _compared(runs)
    files = files_of(comparison)
    assert all(NOT_PLANNED in text for text in files.values())
    assert main(["compare", "study", "--runs-dir", str(tmp_path / "runs"), "--no-files"]) == 0
    assert NOT_PLANNED in " ".join(capsys.readouterr().out.split())
    assert paper_sentences(comparison)[0].endswith(" The number of seeds was not planned.")


def test_the_flags_of_a_plan_set_the_settings():
    parser = CommandParser("train")
    parser.add_overrides()
    parser.add_seed_plan()
    given = ["--planned-seeds", "5", "seed=0,1", "--looks=3, 5"]
    assert parser.parse(given).overrides == ["seed=0,1", "planned_seeds=5", "looks=[3,5]"]
    for wrong in (["--planned-seeds"], ["--looks", "a"], ["--planned-seeds", "3,5"]):
        with pytest.raises(ConfigError, match=rf"argument {wrong[0]}: expected "):
            parser.parse(wrong)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["planned_seeds=2"], "planned_seeds must be at least 3, got 2"),
        (["looks=[3,5]"], "looks must be in ascending order and be combined with planned_seeds, got .3,5."),
        (["planned_seeds=5", "looks=[3,4]"], "must be in ascending order and end with planned_seeds=5"),
        (["planned_seeds=5", "looks=[5,3,5]"], "must be in ascending order"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(settings, message):
    from atrium.config.compose import compose

    with pytest.raises(ConfigError, match=message):
        compose(settings)
