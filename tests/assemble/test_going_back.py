"""Resuming where checkpoints are damaged or gone: no record is lost, and going back has to be asked for."""

from __future__ import annotations

import json
import shutil

import pytest

from atrium.base.errors import CheckpointError
from atrium.base.json_lines import read_json_lines
from atrium.cli import main
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, read_status

SIX_STEPS = (
    "num_steps=6",
    "checkpoint.every_num_steps=1",
    "checkpoint.keep_last=3",
    "checkpoint.keep_best=false",
    "experiment_name=six_steps",
)


@pytest.fixture
def undisturbed(runs):
    """A finished run of six steps with checkpoints at 4, 5 and 6."""
    return runs.only("six_steps") if (runs.runs_dir / "six_steps").is_dir() else runs.train(*SIX_STEPS)


@pytest.fixture
def finished(runs, undisturbed, tmp_path):
    """A copy of that run, for one test."""
    return RunFolder(shutil.copytree(undisturbed.path, runs.runs_dir / tmp_path.name / undisturbed.path.name))


def _record(folder):
    """All of the record, by file."""
    return {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and path.name not in (".lock", "log.txt")
    }


def _recorded_steps(folder, name):
    """The steps in all files of a name, those that were set aside included."""
    return {
        json.loads(line)["step"] for path in folder.path.rglob(name) for line in path.read_text().splitlines()
    }


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _refused(runs, folder, *overrides):
    """What a resume says that has to be refused, and to change nothing."""
    before = _record(folder)
    with pytest.raises(CheckpointError) as refusal:
        runs.resume(folder, *overrides)
    assert _record(folder) == before
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_run_without_any_checkpoint_that_can_be_read_is_refused_and_keeps_its_record(runs, finished):
    for path in finished.checkpoints_dir.glob("step-*/state.json"):
        path.write_text("")
    said = _refused(runs, finished, "num_steps=8")
    assert "step-000006 is damaged (state.json" in said
    assert f"`atrium train --resume {finished.path} --from-step 0` rewinds to the start" in said


@pytest.mark.parametrize(
    "name", ["optimizer.safetensors", "policy/model.safetensors", "policy/tokenizer.json"]
)
def test_a_flipped_bit_in_the_newest_checkpoint_is_refused(runs, finished, name):
    _flip(finished.checkpoint_path(6) / name)
    said = _refused(runs, finished, "num_steps=8")
    assert f"step-000006 is damaged ({name} " in said
    assert "--from-step 5`" in said


def test_a_run_whose_checkpoints_are_gone_is_refused(runs, finished):
    shutil.rmtree(finished.checkpoint_path(6))
    assert "its newest checkpoint is of step 5" in _refused(runs, finished)
    shutil.rmtree(finished.checkpoints_dir)
    said = _refused(runs, finished)
    assert "has 6 recorded steps" in said
    assert "it has no checkpoint" in said
    assert "--from-step 0`" in said


def test_what_an_ordinary_resume_cuts_is_set_aside(runs):
    folder = runs.killed_after(3, "num_steps=6", "checkpoint.every_num_steps=3", "experiment_name=aside")
    written = folder.metrics_file.read_bytes().splitlines()
    assert json.loads(written[-1])["step"] == 4
    rollouts = folder.rollouts_path(4).read_bytes() if folder.rollouts_path(4).exists() else None
    runs.resume(folder)
    everywhere = [path.read_bytes().splitlines() for path in folder.path.rglob("metrics.jsonl")]
    assert [lines for lines in everywhere if written[-1] in lines], "the line of step 4 is nowhere"
    if rollouts is not None:
        assert rollouts in [path.read_bytes() for path in folder.path.rglob("step-000004.parquet")]


def test_going_back_trains_on_from_there_and_sets_the_rest_aside(finished, undisturbed, capsys, same_record):
    before = {name: _recorded_steps(finished, name) for name in ("metrics.jsonl", "evaluations.jsonl")}
    checkpoint = finished.checkpoint_path(6) / "policy" / "model.safetensors"
    _flip(checkpoint)
    damaged = checkpoint.read_bytes()
    assert main(["train", "--resume", str(finished.path), "--from-step", "4"]) == 0
    said = capsys.readouterr().out
    (aside,) = finished.set_aside_dir.iterdir()
    assert f"rewound to step 4: later records are kept in {aside}" in said
    assert [record["step"] for record in read_json_lines(aside / "metrics.jsonl").records] == [5, 6]
    assert (aside / "checkpoints" / "step-000006" / "policy" / "model.safetensors").read_bytes() == damaged
    assert (aside / "summary.json").is_file()
    assert {name: _recorded_steps(finished, name) for name in before} == before
    same_record(finished, undisturbed, step=6)
    assert read_status(finished.status_file).state == RunState.FINISHED


def test_going_back_to_the_start_needs_no_checkpoint(finished):
    shutil.rmtree(finished.checkpoints_dir)
    assert main(["train", "--resume", str(finished.path), "--from-step", "0"]) == 0
    assert [record["step"] for record in read_json_lines(finished.metrics_file).records] == [1, 2, 3, 4, 5, 6]
    (aside,) = finished.set_aside_dir.iterdir()
    assert len(read_json_lines(aside / "metrics.jsonl").records) == 6


def test_going_back_where_there_is_no_whole_checkpoint_is_one_line_and_changes_nothing(finished, capsys):
    _flip(finished.checkpoint_path(5) / "state.json")
    before = _record(finished)
    resume = ["train", "--resume", str(finished.path), "--from-step"]
    for step, part in (
        ("3", "--from-step 3: "),
        ("3", "use one of 0, 4, 5, 6"),
        ("5", "step-000005 is damaged (state.json"),
        ("last", "argument --from-step: expected a whole number of at least 0, got last"),
    ):
        assert main([*resume, step]) == 2
        said = capsys.readouterr().err
        assert part in said
        assert said.count("\n") == 1
    assert main(["train", "--from-step", "4"]) == 2
    assert "add --resume RUN" in capsys.readouterr().err
    assert _record(finished) == before
