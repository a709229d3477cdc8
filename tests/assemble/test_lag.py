"""`rollout.lag=1`: a batch is sampled before the update that precedes its own, also when a run is resumed."""

from __future__ import annotations

import pytest

from atrium.metrics import MISMATCH_MAX, NUM_UPDATES, RATIO_MAX, STALENESS
from atrium.tracking.json_lines import read_json_lines
from atrium.tracking.run_folder_tracker import RunFolderTracker

LAGGED = ("rollout.lag=1", "optimizer.learning_rate=0.01", "num_steps=4", "checkpoint.every_num_steps=1")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def undisturbed(runs):
    if not (runs.runs_dir / "lagged").is_dir():
        runs.train(*LAGGED, "experiment_name=lagged")
    return runs.only("lagged")


def steps_of(folder):
    return list(read_json_lines(folder.metrics_file).records)


def test_every_batch_but_the_first_is_older_by_one_steps_updates(undisturbed):
    steps = steps_of(undisturbed)
    ages = [0.0, *(step[NUM_UPDATES.name] for step in steps[:-1])]
    assert [step[STALENESS.name] for step in steps] == ages
    assert ages[1] == 2.0


def test_sampler_and_trainer_are_compared_when_their_weights_are_equal(undisturbed):
    assert max(step[MISMATCH_MAX.name] for step in steps_of(undisturbed)) < 1e-4


def test_without_a_lag_no_batch_is_stale(runs):
    folder = runs.train("num_steps=2", "experiment_name=unlagged")
    assert [step[STALENESS.name] for step in steps_of(folder)] == [0.0, 0.0]


def test_a_stale_batch_has_ratios_even_in_its_only_update(runs):
    once = (*LAGGED, "optimizer.num_minibatches=1", "experiment_name=once")
    ratios = [step[RATIO_MAX.name] for step in steps_of(runs.train(*once))]
    assert abs(ratios[0] - 1.0) < 1e-3 < ratios[1] - 1.0


@pytest.mark.parametrize("step", [1, 3])
def test_a_lagged_run_killed_and_resumed_equals_an_undisturbed_one(
    runs, undisturbed, same_record, monkeypatch, step
):
    log_metrics = RunFolderTracker.log_metrics

    def log_and_die(self, number, metrics):
        log_metrics(self, number, metrics)
        if number == step + 1:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolderTracker, "log_metrics", log_and_die)
        with pytest.raises(Killed):
            runs.train(*LAGGED, f"experiment_name=lagged-{step}")
    folder = runs.only(f"lagged-{step}")
    checkpoint = folder.checkpoint_path(step)
    assert (checkpoint / "ahead.json").is_file()
    runs.resume(folder)
    same_record(folder, undisturbed, step=4)
    assert not (folder.checkpoint_path(4) / "ahead.json").exists()
