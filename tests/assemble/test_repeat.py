"""Runs repeat and resume bit for bit; other seeds differ; a folder belongs to one process at a time.

The configuration that is resumed has everything that could be forgotten: a reference that moves, an
entropy bonus with a state, stale minibatches, a decaying learning rate, and filtered groups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from tests.assemble.conftest import Killed

from atrium.assemble import run as life
from atrium.assemble.evaluation_plan import EvaluationPlan
from atrium.base.errors import Interrupted, RunFolderError
from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import is_repeatable
from atrium.engines.transformers_engine import TransformersEngine
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState, read_status
from atrium.train.checkpoint import checkpoint
from atrium.train.checkpoint.checkpoint import CheckpointStore
from atrium.train.update.optimizer import PolicyOptimizer

FULL = (
    "algorithm=grpo_kl",
    "algorithm.reference.kind=every_num_steps",
    "algorithm.reference.num_steps=2",
    "algorithm.group_filter.kind=drop",
    "regularizer.entropy.coefficient=0.01",
    "regularizer.entropy.target=1.0",
    "regularizer.entropy.step=0.001",
    "optimizer.num_epochs=2",
    "optimizer.schedule=cosine",
    "optimizer.learning_rate=0.01",
    "num_steps=4",
)


@pytest.fixture
def undisturbed(runs):
    """The run that all interrupted ones must equal."""
    if not (runs.runs_dir / "undisturbed").is_dir():
        runs.train(*FULL, "experiment_name=undisturbed")
    return runs.only("undisturbed")


def _at_call(monkeypatch, owner, name, number, *, before):
    """End the process at the call of that number, before or after it is done."""
    function = getattr(owner, name)
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(args)
        if before and len(calls) == number:
            raise Killed
        result = function(*args, **kwargs)
        if len(calls) == number:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, wrapped)


MOMENTS = {
    "during the first evaluation": (EvaluationPlan, "_evaluate", 2, True),
    "before any step ended": (PolicyOptimizer, "step", 1, False),
    "in the rollouts of step 2": (TransformersEngine, "generate", 4, True),
    "in the middle of the updates of step 2": (PolicyOptimizer, "step", 6, False),
    "after the rollouts of step 3 are recorded": (RunFolderWriter, "rollouts", 3, False),
    "before the evaluation of step 2 is recorded": (RunFolderWriter, "evaluation", 3, True),
    "after the metrics of step 2, before its checkpoint": (CheckpointStore, "save", 2, True),
    "between a checkpoint's files and its name": (checkpoint, "_flush", 2, False),
    "after a checkpoint has its name": (CheckpointStore, "_prune", 2, True),
    "after the last checkpoint": (CheckpointStore, "save", 4, False),
}


def _weights(folder):
    return load_file(folder.checkpoint_path(4) / "policy/model.safetensors")


FAST = {"in the middle of the updates of step 2", "between a checkpoint's files and its name"}


@pytest.mark.parametrize(
    "moment",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.full, id=name) for name in MOMENTS],
)
def test_a_run_killed_and_resumed_equals_an_undisturbed_one(
    runs, undisturbed, same_record, monkeypatch, moment
):
    owner, name, number, before = MOMENTS[moment]
    experiment = f"killed-{list(MOMENTS).index(moment)}"
    with monkeypatch.context() as patched:
        # What a killed process does not do: say how the run ended.
        patched.setattr(RunFolderWriter, "end", lambda self, *args: self.close())
        patched.setattr(life, "print_summary", lambda folder: None)
        _at_call(patched, owner, name, number, before=before)
        with pytest.raises(Killed):
            runs.train(*FULL, f"experiment_name={experiment}")
    folder = runs.only(experiment)
    assert read_status(folder.status_file).state == RunState.RUNNING
    runs.resume(folder)
    assert read_status(folder.status_file).state == RunState.FINISHED
    same_record(folder, undisturbed, step=4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_does_so_after_its_step_with_a_checkpoint(
    runs, undisturbed, same_record, monkeypatch, number
):
    experiment = f"stopped-{number.name}"
    record = RunFolderWriter.step

    def log_and_ask(self, step, metrics):
        record(self, step, metrics)
        signal.raise_signal(number)

    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolderWriter, "step", log_and_ask)
        with pytest.raises(Interrupted, match="stopped after step 1 of 4 with a checkpoint"):
            runs.train(*FULL, f"experiment_name={experiment}", "checkpoint.every_num_steps=3")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    folder = runs.only(experiment)
    status = read_status(folder.status_file)
    assert (status.state, status.step) == (RunState.INTERRUPTED, 1)
    assert folder.checkpoint_steps() == (1,)
    assert folder.summary_file.is_file()
    runs.resume(folder)
    same_record(folder, undisturbed, step=4)


def test_a_failing_step_is_recorded_and_can_be_resumed(runs, undisturbed, same_record, monkeypatch):
    with monkeypatch.context() as patched:

        def fail(self, step):
            raise ZeroDivisionError("a defect")

        patched.setattr(PolicyOptimizer, "step", fail)
        with pytest.raises(ZeroDivisionError):
            runs.train(*FULL, "experiment_name=failed")
    folder = runs.only("failed")
    status = read_status(folder.status_file)
    assert (status.state, status.error) == (RunState.FAILED, "a defect")
    runs.resume(folder)
    same_record(folder, undisturbed, step=4)


def test_the_same_seed_gives_the_same_run(runs, undisturbed, same_record):
    same_record(runs.train(*FULL, "experiment_name=again"), undisturbed, step=4)


def test_another_seed_gives_another_run_from_the_same_start(runs, undisturbed):
    other = runs.train(*FULL, "experiment_name=other", "seed=1")
    records = [read_json_lines(folder.metrics_file).records for folder in (undisturbed, other)]
    names = [name for name in records[0][0] if is_repeatable(name) and name.startswith("rollout/")]
    assert any(records[0][0][name] != records[1][0][name] for name in names)
    weights = [
        load_file(folder.checkpoint_path(4) / "policy/model.safetensors") for folder in (undisturbed, other)
    ]
    assert any(not value.equal(weights[1][name]) for name, value in weights[0].items())


def test_a_finished_run_can_be_trained_on(runs, same_record):
    extended = runs.train("experiment_name=extended", "num_steps=2")
    longer = runs.train("experiment_name=longer", "num_steps=4")
    assert read_status(extended.status_file).num_steps == 2
    runs.resume(extended, "num_steps=4")
    records = [
        [{k: v for k, v in record.items() if is_repeatable(k) and k != "time"} for record in lines]
        for lines in (read_json_lines(folder.metrics_file).records for folder in (extended, longer))
    ]
    assert records[0] == records[1]
    weights = [
        load_file(folder.checkpoint_path(4) / "policy/model.safetensors") for folder in (extended, longer)
    ]
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())
    status = read_status(extended.status_file)
    assert (status.state, status.step, status.num_steps) == (RunState.FINISHED, 4, 4)


def test_resuming_a_finished_run_changes_nothing(runs, undisturbed, same_record):
    folder = runs.train(*FULL, "experiment_name=finished")
    runs.resume(folder)
    same_record(folder, undisturbed, step=4)
    assert read_status(folder.status_file).state == RunState.FINISHED


HOLD = """
import sys
from atrium.runs.run_folder import RunFolder
with RunFolder.open(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_another_process_trains_in_is_refused_and_left_alone(runs, undisturbed):
    command = [sys.executable, "-c", HOLD, str(undisturbed.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as holder:
        assert holder.stdout.readline() == b"held\n"
        before = {path: path.read_bytes() for path in undisturbed.path.rglob("*") if path.is_file()}
        with pytest.raises(RunFolderError, match="in use by"):
            runs.resume(undisturbed, "num_steps=9")
        assert {path: path.read_bytes() for path in undisturbed.path.rglob("*") if path.is_file()} == before


def test_more_prompts_than_problems_still_train_and_are_recorded(runs):
    folder = runs.train("experiment_name=few", "dataset.num_train=2", "num_steps=1")
    assert read_json_lines(folder.metrics_file).records[0]["rollout/num_groups_sampled"] == 4
    assert folder.rollouts_path(1).is_file()
