"""`atrium atlas`: classes on synthetic and on stored rollouts, figures, JSON, and mistakes in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.run_records import group_of_two, sum_problem

from atrium.assemble.atlas import _spread, page_of
from atrium.base.records import TokenTrace
from atrium.cli import main
from atrium.document.document import Grid, Lines
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import write_rollouts

FEW = ["--methods", "grpo", "gspo", "reinforce", "dr_grpo", "--batches", "1", "--spread", "0.3"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_classes_of_a_few_methods_are_printed_and_drawn(here, capsys):
    assert main(["atlas", *FEW]) == 0
    printed, said = capsys.readouterr()
    assert said == ""
    assert "one update: 4 methods have 3 distinct gradients, and 2 distinct directions." in printed
    assert "1. 2 methods: grpo, gspo" in printed
    assert "2. 2 methods, 2 step lengths: dr_grpo | reinforce" in printed
    drawn = {path.name for path in (here / "runs" / "figures").iterdir()}
    assert drawn == {f"atlas-{name}.{kind}" for name in ("counts", "distances") for kind in ("png", "svg")}


def test_stored_rollouts_add_the_drift_that_they_recorded(here, capsys):
    folder = RunFolder(here / "runs" / "sums" / "20260101-000000-grpo-s0-0000")
    folder.path.mkdir(parents=True)
    folder.config_file.write_text("{}")
    group = group_of_two(sum_problem(0), np.random.default_rng(0), num_tokens=3, text="x")
    trace = TokenTrace(advantage=(1.0,) * 3, ratio=(1.0, 1.4, 0.6), entropy=(0.1,) * 3, clipped=(0,) * 3)
    write_rollouts(folder.rollouts_path(1), 1, [group], [trace] * len(group.rollouts))
    assert main(["atlas", "last", *FEW, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    names = [one["drift"]["name"] for one in found["partitions"]]
    assert names == ["one update", "stale rollouts", "other engine", "as recorded", "spread 0.3"]
    classes = {name: len(one["directions"]) for name, one in zip(names, found["partitions"], strict=True)}
    assert classes["one update"] < classes["as recorded"]


def test_a_table_of_another_program_has_its_own_rollouts(here, capsys):
    rows = [
        {"global_step": 1, "uid": problem, "reward": reward, "old_log_probs": [-0.5, -1.0], "w": [1.0, 1.5]}
        for problem, reward in (("a", 1.0), ("a", 0.0), ("b", 0.0), ("b", 1.0))
    ]
    (here / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["atlas", "rollouts.jsonl", *FEW, "--map", "ratio=w", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"].startswith("1 stored steps of rollouts.jsonl")
    assert "as recorded" in [one["drift"]["name"] for one in found["partitions"]]


@pytest.mark.full
def test_the_page_of_the_dashboard_has_a_figure_for_each_section():
    made = page_of(None)
    assert [type(section.figures[0]) for section in made.sections] == [Lines, Grid]


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--methods", "art", "grpo"], "did you mean atr?"),
        (["--methods", "grpo"], "requires at least two methods"),
        (["--spread", "0"], "--spread: expected a number greater than 0 and at most 10, got 0"),
        (["--spread", "x"], "expected a number greater than 0 and at most 10, got x"),
        (["--batches", "0"], "at least 1, got 0"),
        (["nowhere"], "no runs"),
        (["last", "--map", "score=acc"], "cannot be used with a run"),
    ],
)
def test_mistakes_are_one_line(here, capsys, argv, word):
    assert main(["atlas", *argv]) in (1, 2)
    printed, said = capsys.readouterr()
    assert printed == ""
    assert word in said
    assert said.count("\n") == 1


def test_figures_of_a_run_without_rollouts_are_refused_in_one_line(here, capsys):
    folder = RunFolder(here / "runs" / "sums" / "20260101-000000-grpo-s0-0000")
    folder.path.mkdir(parents=True)
    folder.config_file.write_text("{}")
    assert main(["figures", "last"]) == 2
    assert capsys.readouterr().err.endswith("updates by a known method; remove it from the command\n")


@pytest.mark.parametrize(
    ("num", "chosen", "expected"),
    [
        (11, 6, [0, 2, 4, 6, 8, 10]),
        (20, 6, [0, 3, 7, 11, 15, 19]),
        (3, 6, [0, 1, 2]),
        (5, 1, [0]),
    ],
)
def test_chosen_steps_are_spread_evenly_from_the_first_to_the_last(num, chosen, expected):
    assert _spread(range(num), chosen) == expected
