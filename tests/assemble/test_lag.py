"""`rollout.lag=1`: a batch is sampled before the update that precedes its own, also when a run is resumed."""

from __future__ import annotations

import threading

import pytest

from atrium.errors import EngineError
from atrium.metrics import MISMATCH_MAX, NUM_UPDATES, OVERLAP_S, RATIO_MAX, STALENESS
from atrium.rollout.transformers_engine import TransformersEngine
from atrium.tracking.json_lines import read_json_lines
from atrium.train.update.optimizer import PolicyOptimizer

LAGGED = ("rollout.lag=1", "optimizer.learning_rate=0.01", "num_steps=4", "checkpoint.every_num_steps=1")


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
def test_a_lagged_run_killed_and_resumed_equals_an_undisturbed_one(runs, undisturbed, same_record, step):
    folder = runs.killed_after(step, *LAGGED, f"experiment_name=lagged-{step}")
    checkpoint = folder.checkpoint_path(step)
    assert (checkpoint / "ahead.json").is_file()
    runs.resume(folder)
    same_record(folder, undisturbed, step=4)
    assert not (folder.checkpoint_path(4) / "ahead.json").exists()


def test_a_batch_sampled_during_the_update_is_the_one_sampled_before_it(runs, undisturbed, same_record):
    """A learning rate that moves weights far in a step: another batch would be another run."""
    folder = runs.train(*LAGGED, "rollout.overlap=true", "experiment_name=overlapping")
    same_record(folder, undisturbed, step=4)
    overlaps = [step.get(OVERLAP_S.name, 0.0) for step in steps_of(folder)]
    assert overlaps[0] == 0.0
    assert all(seconds > 0.0 for seconds in overlaps[1:])
    assert all(OVERLAP_S.name not in step for step in steps_of(undisturbed))


def test_an_overlapping_run_killed_and_resumed_equals_a_sequential_one(runs, undisturbed, same_record):
    overlapping = (*LAGGED, "rollout.overlap=true", "experiment_name=overlapping_killed")
    same_record(runs.resume(runs.killed_after(2, *overlapping)), undisturbed, step=4)


def test_adapters_overlap_too(runs, same_record):
    adapters = (*LAGGED, "model.lora={rank: 4, alpha: 8}", "num_steps=3")
    sequential = runs.train(*adapters, "experiment_name=adapters_lagged")
    overlapping = runs.train(*adapters, "rollout.overlap=true", "experiment_name=adapters_overlapping")
    same_record(overlapping, sequential, step=3)


def test_an_update_that_fails_ends_the_sampling_beside_it(runs, monkeypatch):
    def fail(self, step):
        raise RuntimeError("the optimiser is gone")

    monkeypatch.setattr(PolicyOptimizer, "step", fail)
    with pytest.raises(RuntimeError, match="the optimiser is gone"):
        runs.train(*LAGGED, "rollout.overlap=true", "experiment_name=failing_update")
    assert all(thread.name != "sampling-ahead" for thread in threading.enumerate())


def test_sampling_that_fails_ends_the_run_with_its_own_message(runs, monkeypatch):
    generate = TransformersEngine.generate

    def fail_beside_an_update(self, requests, sampling):
        if threading.current_thread() is not threading.main_thread():
            raise EngineError("the engine is gone")
        return generate(self, requests, sampling)

    monkeypatch.setattr(TransformersEngine, "generate", fail_beside_an_update)
    with pytest.raises(EngineError, match="the engine is gone"):
        runs.train(*LAGGED, "rollout.overlap=true", "experiment_name=failing_sampler")
