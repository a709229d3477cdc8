from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from atrium.base.json_lines import encode_line
from atrium.runs.document import summary_document
from atrium.runs.evaluation_document import evaluation_document, evaluation_tables
from atrium.runs.find import name_to_type
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState
from atrium.views.terminal import print_document


def printed(folder, width=80, **terminal):
    screen = io.StringIO()
    print_document(Console(file=screen, width=width, **terminal), summary_document(folder))
    return screen.getvalue()


def lines_with(text, part):
    return [line for line in text.splitlines() if part in line]


@pytest.fixture
def finished(folder, record):
    record(folder).end(RunState.FINISHED)
    folder.figures_dir.mkdir()
    (folder.figures_dir / "curves.png").write_bytes(b"")
    (folder.checkpoint_path(6) / "policy").mkdir(parents=True)
    return folder


def test_summary_shows_scores_with_intervals_test_problems_first(finished):
    text = printed(finished)
    mean, _ = lines_with(text, "Mean@8")
    assert mean.split()[0].endswith("test")
    assert "20.0 [10.0, 30.0]  80.0 [70.0, 90.0]" in mean
    passed, _ = lines_with(text, "Pass@8")
    assert passed.split()[:2] == ["3", "problems"]
    assert "40.0 [20.0, 50.0]  100.0 [80.0, 100.0]" in passed
    assert text.index("test") < text.index("validation")
    assert all(len(line) <= 80 for line in lines_with(text, "@8"))
    assert "95 % intervals for new problems" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_summary_in_a_terminal_breaks_between_words_only(finished, width):
    text = printed(finished, width, force_terminal=True, color_system=None)
    lines = text.splitlines()
    assert "…" not in text
    assert any("80.0 [70.0, 90.0]" in line for line in lines)
    to_copy = str(finished.path)
    assert not [line for line in lines if len(line) > width and to_copy not in line]


def test_interrupted_run_is_no_error_in_its_summary(folder, record):
    record(folder).end(RunState.INTERRUPTED, "stopped after step 6 of 8; its checkpoint is saved")
    text = printed(folder)
    assert "interrupted" in text
    assert "stopped after" not in text
    assert "error" not in text


def test_summary_shows_curves_with_their_first_and_last_values(finished):
    [reward] = lines_with(printed(finished), "reward")
    assert reward.split() == ["reward", "0.409", "▁▃▅▆▇█", "0.719"]


def test_summary_shows_paths_and_next_commands(finished, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = printed(finished)
    digits = finished.path.name[-4:]
    assert lines_with(text, str(finished.path / "figures" / "curves.png"))
    assert lines_with(text, str(finished.checkpoint_path(6)))
    for command in (
        f"atrium show {digits}",
        f"atrium export {digits}",
        f"atrium train --resume {digits} num_steps=12",
    ):
        assert lines_with(text, command)


def test_paths_and_commands_are_never_broken_into_lines(finished):
    text = printed(finished, width=30)
    assert lines_with(text, str(finished.path / "figures" / "curves.png"))
    assert lines_with(text, f"atrium export {name_to_type(finished)}")


def test_a_run_elsewhere_is_named_by_its_path(finished, monkeypatch, tmp_path):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert lines_with(printed(finished), f"atrium show {finished.path}")


def test_summary_of_an_interrupted_run_shows_how_to_resume(folder, record, monkeypatch, tmp_path):
    record(folder, last=4).end(RunState.INTERRUPTED)
    monkeypatch.chdir(tmp_path)
    text = printed(folder)
    assert "interrupted" in text
    assert "step 4 of 6" in text
    [line] = lines_with(text, f"atrium train --resume {folder.path.name[-4:]}")
    assert "next" in line
    assert line.endswith("start again from the first step")
    assert not lines_with(text, "atrium export")
    folder.checkpoint_path(3).mkdir(parents=True)
    [line] = lines_with(printed(folder), f"atrium train --resume {folder.path.name[-4:]}")
    assert line.endswith("continue after step 3")


def test_a_diverged_run_is_not_advised_to_diverge_again(folder, record):
    record(folder, last=4).end(RunState.FAILED, "the loss is not finite", "diverged")
    assert "--resume" not in printed(folder)
    for step in (2, 4):
        folder.checkpoint_path(step).mkdir(parents=True)
    [line] = lines_with(printed(folder, width=200), "--resume")
    assert "@2 optimizer.learning_rate=LR" in line


def test_a_curve_whose_last_value_is_missing_shows_no_earlier_one(folder, record):
    writer = record(folder, last=2)
    writer.step(3, {"objective/entropy": math.nan})
    writer.end(RunState.FAILED, "not finite")
    assert lines_with(printed(folder), "entropy, nats ")[0].endswith(" –")


def test_a_failed_run_says_why(folder, record):
    record(folder, last=2).end(RunState.FAILED, "the loss is [red]not finite[/red]")
    assert "error: the loss is [red]not finite[/red]" in printed(folder)


def test_a_benchmark_that_was_evaluated_once_has_no_after(folder, record):
    record(folder, last=2).end(RunState.INTERRUPTED)
    for line in lines_with(printed(folder), "Mean@8"):
        assert line.rstrip().endswith("–")


def test_a_run_without_anything_and_one_with_hostile_names_are_shown(tmp_path, folder):
    assert "unknown" in printed(RunFolder(tmp_path))
    results = {"k": 8, "mean_at_k": 0.5}
    line = {"step": 1, "benchmark": "[bold]x\x1b[2J", "results": results}
    folder.evaluations_file.write_text(json.dumps(line) + "\n")
    text = printed(folder)
    assert "[bold]x" in text
    assert "\x1b" not in text


@pytest.fixture
def unmeasured(tmp_path):
    """An evaluation in a folder with a space, whose first record lacks k and a group's score."""
    folder = RunFolder(tmp_path / "my runs" / "quickstart" / "one")
    folder.path.mkdir(parents=True)
    both = ({}, {"breakdown": {"level": {"1": {"mean_at_k": 0.7}}}})
    records = [{"step": step, "benchmark": "test", "results": results} for step, results in enumerate(both)]
    folder.evaluations_file.write_bytes(b"".join(map(encode_line, records)))
    return folder


def test_unknown_scores_and_sample_counts_are_not_shown_as_nan_or_none(unmeasured):
    assert evaluation_tables(unmeasured)[0].note.startswith("by level, in %:  1: – → 70\n")
    scores, groups = evaluation_document(unmeasured).sections[0].tables
    assert scores.rows[0].cells[0] == "Mean@k"
    assert [column.title for column in groups.columns][2:4] == ["Mean@k, %", "Pass@k, %"]


def test_command_that_shows_an_evaluation_quotes_a_folder_with_a_space(unmeasured):
    [places] = evaluation_document(unmeasured).sections[-1].passages
    assert places.text.endswith(f"atrium show '{unmeasured.path}'")
