"""The life of a run without its training: how its end is recorded, and that its folder is its own."""

from __future__ import annotations

import pytest

from atrium.assemble.run import opened, training_request
from atrium.base.errors import EngineError, Interrupted, Pruned, RunFolderError, TrainingDivergedError
from atrium.runs.listener import Listener
from atrium.runs.reader import read_metrics
from atrium.runs.status import RunState, read_status

ENDS = {
    "asked": (Interrupted("stopped after step 1 of 4"), "interrupted", "stopped after step 1 of 4", None),
    "at_once": (KeyboardInterrupt(), "interrupted", "stopped at once", None),
    "pruned": (Pruned("its curve fell behind"), "pruned", "its curve fell behind", None),
    "failed": (EngineError("no answer"), "failed", "no answer", "engine"),
    "diverged": (TrainingDivergedError("not finite"), "failed", "not finite", "diverged"),
    "too_large": (MemoryError("no room"), "failed", "no room", "out_of_memory"),
    "silent": (ZeroDivisionError(), "failed", "ZeroDivisionError", "error"),
}


class Watcher(Listener):
    """Notes how the run ended."""

    def __init__(self):
        self.ended = []

    def end(self, state, error=None, cause=None):
        self.ended.append((state, error, cause))


@pytest.mark.parametrize("case", ENDS)
def test_each_way_to_end_has_its_state_and_says_why(runs, case):
    failure, state, said, cause = ENDS[case]
    request, watcher = training_request(runs.config(f"experiment_name=ends_{case}")), Watcher()
    folders = []
    with pytest.raises(type(failure)):
        _fail_after_a_step(request, watcher, failure, folders)
    (folder,) = folders
    status = read_status(folder.status_file)
    assert (status.state, status.error, status.cause) == (state, said, cause)
    assert status.format_version == 2
    assert watcher.ended == [(state, said, cause)]
    assert folder.config_file.is_file()
    assert folder.overrides_file.read_text() == '- "seed=0"\n'
    assert folder.summary_file.is_file()


def _fail_after_a_step(request, watcher, failure, folders):
    with opened(request, ["seed=0"], watchers=[watcher]) as run:
        folders.append(run.folder)
        run.listener.step(1, {})
        raise failure


def test_a_failure_before_the_first_step_is_a_failed_start_that_keeps_its_cause(runs):
    request = training_request(runs.config("experiment_name=no_start"))
    with pytest.raises(TrainingDivergedError), opened(request) as run:
        raise TrainingDivergedError("the warm-up's loss is not finite")
    status = read_status(run.folder.status_file)
    assert (status.state, status.cause) == ("failed_start", "diverged")


def test_a_run_that_ends_well_is_finished_and_what_it_holds_is_closed_after_that(runs):
    states = []
    request = training_request(runs.config("experiment_name=ends_well"))
    with opened(request) as run:
        run.closing.callback(lambda: states.append(read_status(run.folder.status_file).state))
        assert read_status(run.folder.status_file).state == RunState.STARTING
    assert states == [RunState.FINISHED]


def test_the_folder_and_its_log_hold_a_step_before_a_watcher_hears_of_it(runs):
    held = []

    class Reader(Listener):
        def step(self, step, metrics):
            held.append((len(read_metrics(run.folder).steps), "step 1/4" in run.folder.log_file.read_text()))

    request = training_request(runs.config("experiment_name=order", "num_steps=4"))
    with opened(request, watchers=[Reader()]) as run:
        run.listener.begin(step=0, num_steps=4)
        run.listener.step(1, {"rollout/reward": 0.5, "time/step_s": 1.0})
    assert held == [(1, True)]


def test_an_open_run_cannot_be_opened_again(runs):
    config = runs.config("experiment_name=open_twice")
    with opened(training_request(config)) as run:
        again = config.model_copy(update={"resume": str(run.folder.path)})
        with pytest.raises(RunFolderError, match="in use by process"), opened(training_request(again)):
            pass
        assert read_status(run.folder.status_file).state == RunState.STARTING
