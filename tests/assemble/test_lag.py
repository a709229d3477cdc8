"""`rollout.lag=k`: a batch is sampled k steps of updates early, also when a run is resumed or extended."""

from __future__ import annotations

import threading

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from atrium.errors import CheckpointError, EngineError
from atrium.metrics import MISMATCH_MAX, NUM_UPDATES, OVERLAP_S, RATIO_MAX, STALENESS, is_repeatable
from atrium.rollout.transformers_engine import TransformersEngine
from atrium.tracking.json_lines import read_json_lines
from atrium.train.checkpoint.lagged import read_lagged
from atrium.train.update.optimizer import PolicyOptimizer

LAGGED = ("rollout.lag=1", "optimizer.learning_rate=0.01", "num_steps=4", "checkpoint.every_num_steps=1")


@pytest.fixture
def undisturbed(runs):
    if not (runs.runs_dir / "lagged").is_dir():
        runs.train(*LAGGED, "experiment_name=lagged")
    return runs.only("lagged")


def steps_of(folder):
    return list(read_json_lines(folder.metrics_file).records)


def numbers_of(folder):
    """What of the steps can be repeated, phases that an evaluation adds aside."""
    return [
        {name: value for name, value in step.items() if name != "time" and is_repeatable(name)}
        for step in steps_of(folder)
    ]


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
    assert (checkpoint / "lagged-1.json").is_file()
    runs.resume(folder)
    same_record(folder, undisturbed, step=4)


DEEP = (
    "rollout.lag=3",
    "optimizer.learning_rate=0.01",
    "checkpoint.every_num_steps=1",
    "checkpoint.keep_last=9",
)


@pytest.fixture
def deep(runs):
    if not (runs.runs_dir / "deep").is_dir():
        runs.train(*DEEP, "num_steps=6", "experiment_name=deep")
    return runs.only("deep")


def test_a_batch_is_as_old_as_the_updates_of_the_steps_that_it_waited_for(deep):
    steps = steps_of(deep)
    updates = [step[NUM_UPDATES.name] for step in steps]
    expected = [sum(updates[max(0, number - 3) : number]) for number in range(len(steps))]
    assert [step[STALENESS.name] for step in steps] == expected
    assert expected[-1] == 3 * updates[0]
    assert max(step[MISMATCH_MAX.name] for step in steps) < 1e-4


@pytest.mark.parametrize("step", [1, 4])
def test_a_deeply_lagged_run_killed_and_resumed_equals_an_undisturbed_one(runs, deep, same_record, step):
    folder = runs.killed_after(step, *DEEP, "num_steps=6", f"experiment_name=deep-{step}")
    assert len([*folder.checkpoint_path(step).glob("lagged-*.json")]) == 3
    runs.resume(folder)
    same_record(folder, deep, step=6)


def test_a_finished_run_that_is_extended_is_the_longer_run(runs, deep, same_record):
    folder = runs.train(*DEEP, "num_steps=4", "experiment_name=deep_short")
    runs.resume(folder, "num_steps=6")
    assert numbers_of(folder) == numbers_of(deep)
    ours, theirs = (load_file(run.checkpoint_path(6) / "policy/model.safetensors") for run in (folder, deep))
    assert all(value.equal(theirs[name]) for name, value in ours.items())


def test_a_batch_holds_the_log_probabilities_of_the_checkpoint_that_sampled_it(deep):
    """The third batch in the checkpoint of step 3 is that of step 6, which the weights of step 2 sampled."""
    *_, batch = read_lagged(deep.checkpoint_path(3))
    policy = AutoModelForCausalLM.from_pretrained(deep.checkpoint_path(2) / "policy")
    group = batch.collected.groups[0]
    for completion in (rollout.completion for rollout in group.rollouts):
        tokens = torch.tensor([[*group.prompt_token_ids, *completion.token_ids]])
        first = len(group.prompt_token_ids)
        with torch.no_grad():
            logprob_TV = policy(tokens).logits[0, first - 1 : -1].log_softmax(dim=-1)
        found_T = logprob_TV.gather(1, tokens[0, first:, None])[:, 0]
        torch.testing.assert_close(found_T, torch.tensor(completion.logprobs), rtol=0.0, atol=1e-4)
    stored = pq.read_table(deep.rollouts_path(6)).to_pylist()
    sampled = [list(one.completion.token_ids) for group in batch.collected.groups for one in group.rollouts]
    assert [row["token_ids"] for row in stored] == sampled


def test_a_checkpoint_of_the_version_that_held_one_batch_is_refused_in_a_line(runs):
    folder = runs.killed_after(1, *LAGGED, "experiment_name=early")
    checkpoint = folder.checkpoint_path(1)
    (checkpoint / "lagged-1.json").rename(checkpoint / "ahead.json")
    with pytest.raises(CheckpointError, match="start the run anew"):
        read_lagged(checkpoint)


def test_with_weights_that_do_not_move_every_ratio_of_an_old_batch_is_one(runs):
    still = ("rollout.lag=4", "optimizer.learning_rate=1e-30", "num_steps=6", "experiment_name=still")
    for step in steps_of(runs.train(*still)):
        assert step[RATIO_MAX.name] == pytest.approx(1.0, abs=1e-4)


def test_deep_batches_sampled_during_updates_are_the_same(runs, deep, same_record):
    folder = runs.train(*DEEP, "num_steps=6", "rollout.overlap=true", "experiment_name=deep_overlapping")
    same_record(folder, deep, step=6)


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
