"""`--resume RUN@STEP`: a new run from a step of another, which stays as it is."""

from __future__ import annotations

import re

import pytest
from safetensors.torch import load_file, save_file
from tests.assemble.conftest import assert_same_weights, evaluations_of, metrics_of, rollouts_of

from atrium.assemble.branching import begin_branch, branch_config, split_step
from atrium.assemble.training import run_training
from atrium.base.errors import CheckpointError, ConfigError, PolicyDivergedError
from atrium.cli import main
from atrium.config.compose import from_json
from atrium.runs.method_settings import method_key
from atrium.runs.run_folder import RunFolder
from atrium.train.checkpoint.checkpoint_files import DIGESTS, write_digests

FOUR_STEPS = (
    "num_steps=4",
    "checkpoint.every_num_steps=1",
    "checkpoint.keep_last=3",
    "experiment_name=branches",
)


def _branched(runs, parent, step, *overrides):
    stored = from_json(parent.config_file.read_text())
    config = branch_config(stored, parent, step, overrides)
    return RunFolder(run_training(begin_branch(config, parent, step, overrides), runs.grader, overrides))


@pytest.fixture
def parent(runs):
    """A finished run of four steps with checkpoints at 2, 3 and 4."""
    folder = runs.runs_dir / "branches"
    known = [RunFolder(path) for path in folder.iterdir()] if folder.is_dir() else []
    # Names do not tell it from its branches: those that begin within a second differ by chance.
    parents = [run for run in known if from_json(run.config_file.read_text()).branch is None]
    return parents[0] if parents else runs.train(*FOUR_STEPS)


def _files(folder):
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_a_branch_without_changes_repeats_its_parent_bit_for_bit_and_leaves_it_alone(runs, parent):
    before = _files(parent)
    branch = _branched(runs, parent, 2)
    assert branch.path.parent == parent.path.parent
    assert metrics_of(branch) == metrics_of(parent)
    assert evaluations_of(branch)[1] == evaluations_of(parent)[1]
    assert rollouts_of(branch) == rollouts_of(parent)
    assert_same_weights(branch, parent, 4)
    assert _files(parent) == before


def test_a_branch_records_its_parent_and_is_another_method_wherever_the_parent_lies(runs, parent, capsys):
    branch = _branched(runs, parent, 3, "optimizer.learning_rate=1e-5")
    config, stored = (from_json(one.config_file.read_text()) for one in (branch, parent))
    assert (config.branch.run, config.branch.step) == (parent.name, 3)
    assert config.branch.method == method_key(stored.as_record())
    assert config.optimizer.learning_rate == 1e-5
    same = stored.model_copy(update={"branch": config.branch})
    moved = same.model_copy(update={"branch": config.branch.model_copy(update={"run": "another/run"})})
    assert method_key(same.as_record()) == method_key(moved.as_record()) != method_key(stored.as_record())
    assert main(["show", str(branch.path)]) == 0
    assert f"started from step 3 of {parent.name}" in capsys.readouterr().out
    assert metrics_of(runs.resume(branch, "num_steps=5")).keys() == {1, 2, 3, 4, 5}


def test_a_branch_that_cannot_be_copied_leaves_nothing(runs, parent, monkeypatch):
    num_runs = len(list(parent.path.parent.iterdir()))

    def fail(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("atrium.runs.branch.shutil.copytree", fail)
    with pytest.raises(Exception, match="No space left"):
        _branched(runs, parent, 2)
    assert len(list(parent.path.parent.iterdir())) == num_runs


def test_the_advice_for_weights_that_are_not_finite_can_be_followed(runs, parent):
    broken = _branched(runs, parent, 3)
    weights = broken.checkpoint_path(4) / "policy" / "model.safetensors"
    not_finite = {name: value.fill_(float("nan")) for name, value in load_file(weights).items()}
    save_file(not_finite, weights, metadata={"format": "pt"})
    (broken.checkpoint_path(4) / DIGESTS).unlink()
    write_digests(broken.checkpoint_path(4))
    with pytest.raises(CheckpointError, match="must be finite") as found:
        runs.resume(broken, "num_steps=5")
    advice = re.search(r"`atrium train --resume RUN@STEP (\S+)=LR`", str(found.value))
    assert advice[0] in str(PolicyDivergedError()), "while a run trains the advice is the same"
    branch = _branched(runs, broken, 3, f"{advice[1]}=1e-6", "num_steps=4")
    assert metrics_of(branch).keys() == {1, 2, 3, 4}


def test_a_damaged_checkpoint_and_a_step_without_one_begin_no_run(runs, parent):
    with pytest.raises(ConfigError, match="no checkpoint of that step; it has checkpoints of steps 2, 3, 4"):
        _branched(runs, parent, 1)
    damaged = _branched(runs, parent, 3)
    (damaged.checkpoint_path(4) / "optimizer.safetensors").write_bytes(b"")
    num_runs = len(list(parent.path.parent.iterdir()))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
        _branched(runs, damaged, 4)
    assert len(list(parent.path.parent.iterdir())) == num_runs


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["{run}@"], "RUN@STEP"),
        (["{run}@0"], "RUN@STEP"),
        (["{run}@-1"], "RUN@STEP"),
        (["{run}@two"], "RUN@STEP"),
        (["{run}@9"], "no checkpoint of that step; it has checkpoints of steps 2, 3, 4"),
        (["{run}@3", "seed=3"], "seed=3 cannot be used when a run starts from a step of another"),
        (["{run}@3", "optimizer=adamw_8bit"], "optimizer=adamw_8bit cannot be used"),
        (["{run}@3", "optimizer.learning_rat=1"], "did you mean optimizer.learning_rate?"),
        (["{run}@3", "optimizer.learning_rate=-1"], "must be greater than 0"),
        (["{run}@3", "--from-step", "2"], "already names a step"),
    ],
)
def test_what_cannot_be_branched_is_one_line(parent, capsys, given, said):
    run, *rest = given
    assert main(["train", "--resume", run.format(run=parent.path), *rest]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1


def test_a_branch_is_not_repeated_from_the_start_nor_taken_back_before_it(runs, parent, capsys):
    branch = _branched(runs, parent, 3)
    assert main(["rerun", str(branch.path)]) == 2
    assert f"use --resume {parent.name}@3" in capsys.readouterr().err
    assert main(["train", "--resume", str(branch.path), "--from-step", "0"]) == 2
    assert "--from-step must be at least 3" in capsys.readouterr().err
    assert main(["train", "+branch={run: a, step: 1, method: b}"]) == 2
    assert "cannot be set" in capsys.readouterr().err


def test_a_path_that_is_there_keeps_what_it_has_after_an_at(tmp_path):
    (tmp_path / "run@3").mkdir()
    assert split_step(str(tmp_path / "run@3")) == (str(tmp_path / "run@3"), None)
    assert split_step(f"{tmp_path}/run@3@2") == (f"{tmp_path}/run@3", 2)
    assert split_step("last@12") == ("last", 12)
    assert split_step("a" * 300 + "@5") == ("a" * 300, 5)
