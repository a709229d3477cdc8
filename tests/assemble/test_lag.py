"""`rollout.lag=k`: a batch is sampled k steps of updates early, also when a run is resumed or extended."""

from __future__ import annotations

import json
import threading
from functools import partial

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from atrium.assemble import servers
from atrium.assemble.evaluation import run_evaluation
from atrium.base.errors import EngineError
from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import (
    ENGINE_IDLE_S,
    KL_BEFORE_UPDATE,
    MISMATCH_MAX,
    MIXED_WEIGHTS_FRAC,
    NUM_GROUPS_DROPPED,
    NUM_UPDATES,
    OUTSIDE_BEFORE_UPDATE_FRAC,
    OVERLAP_S,
    QUEUE_BATCHES,
    RATIO_MAX,
    STALENESS,
    STALENESS_STEPS,
    is_repeatable,
)
from atrium.cli import main
from atrium.config.compose import from_json
from atrium.config.evaluation import EvaluatedCheckpoint, checkpoint_evaluation
from atrium.engines.server.engine import ServerEngine
from atrium.engines.server.process import ServerProcess
from atrium.runs.run_folder import RunFolder
from atrium.train.checkpoint.lagged import read_lagged
from atrium.train.lag import LaggedSteps
from atrium.train.update.optimizer import PolicyOptimizer

LAGGED = (
    "rollout.lag=1",
    "rollout.unit_samples=8",
    "optimizer.learning_rate=0.01",
    "num_steps=4",
    "checkpoint.every_num_steps=1",
)


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
    assert [step[STALENESS_STEPS.name] for step in steps_of(folder)] == [0.0, 0.0]
    assert all(QUEUE_BATCHES.name not in step for step in steps_of(folder))


def test_a_stale_batch_has_ratios_even_in_its_only_update(runs):
    once = (*LAGGED, "optimizer.num_minibatches=1", "experiment_name=once")
    ratios = [step[RATIO_MAX.name] for step in steps_of(runs.train(*once))]
    assert abs(ratios[0] - 1.0) < 1e-3 < ratios[1] - 1.0


@pytest.mark.full
@pytest.mark.parametrize("step", [1, pytest.param(3, marks=pytest.mark.release)])
def test_a_lagged_run_killed_and_resumed_equals_an_undisturbed_one(runs, undisturbed, same_record, step):
    folder = runs.killed_after(step, *LAGGED, f"experiment_name=lagged-{step}")
    checkpoint = folder.checkpoint_path(step)
    assert (checkpoint / "lagged-1.json").is_file()
    runs.resume(folder)
    same_record(folder, undisturbed, step=4)


DEEP = (
    "rollout.lag=3",
    "rollout.unit_samples=8",
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
    assert [step[STALENESS_STEPS.name] for step in steps] == [0, 1, 2, 3, 3, 3]
    assert expected[-1] == 3 * updates[0]
    assert max(step[MISMATCH_MAX.name] for step in steps) < 1e-4


@pytest.mark.full
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.release)])
def test_a_deeply_lagged_run_killed_and_resumed_equals_an_undisturbed_one(runs, deep, same_record, step):
    folder = runs.killed_after(step, *DEEP, "num_steps=6", f"experiment_name=deep-{step}")
    assert len([*folder.checkpoint_path(step).glob("lagged-*.json")]) == 3
    runs.resume(folder)
    same_record(folder, deep, step=6)


@pytest.mark.full
def test_a_finished_run_that_is_extended_is_the_longer_run(runs, deep, same_record):
    folder = runs.train(*DEEP, "num_steps=4", "experiment_name=deep_short")
    runs.resume(folder, "num_steps=6")
    assert numbers_of(folder) == numbers_of(deep)
    ours, theirs = (load_file(run.checkpoint_path(6) / "policy/model.safetensors") for run in (folder, deep))
    assert all(value.equal(theirs[name]) for name, value in ours.items())


def test_a_batch_holds_the_log_probabilities_of_the_checkpoint_that_sampled_it(deep):
    """The third batch in the checkpoint of step 3 is that of step 6, which the weights of step 2 sampled."""
    *_, batch = read_lagged(deep.checkpoint_path(3))
    completions = [rollout.completion for group in batch.groups for rollout in group.rollouts]
    expected_N = torch.cat([torch.tensor(completion.logprobs) for completion in completions])
    found_N = logprobs_by_checkpoint(deep, 2, batch.groups)
    torch.testing.assert_close(found_N, expected_N, rtol=0.0, atol=1e-4)
    stored = pq.read_table(deep.rollouts_path(6)).to_pylist()
    assert [row["token_ids"] for row in stored] == [list(one.token_ids) for one in completions]


def test_recorded_staleness_is_that_of_the_checkpoints_that_sampled_and_began_the_step(runs):
    """The batch of step 5 was sampled by the weights after step 2, and is updated by those after step 4."""
    folder = runs.train(
        *DEEP, "rollout.lag=2", "num_steps=5", "optimizer.num_minibatches=1", "experiment_name=stale"
    )
    groups = read_lagged(folder.checkpoint_path(4))[0].groups
    log_ratio_N = logprobs_by_checkpoint(folder, 4, groups) - logprobs_by_checkpoint(folder, 2, groups)
    window = from_json(folder.config_file.read_text()).divergence.window()
    ratio_N = log_ratio_N.exp()
    outside_N = (ratio_N < window.lower) | (ratio_N > window.upper)
    recorded = steps_of(folder)[4]
    assert recorded[STALENESS_STEPS.name] == 2
    k3_N = ratio_N - 1.0 - log_ratio_N
    assert recorded[KL_BEFORE_UPDATE.name] == pytest.approx(k3_N.mean().item(), rel=1e-2)
    assert recorded[OUTSIDE_BEFORE_UPDATE_FRAC.name] == pytest.approx(
        outside_N.float().mean().item(), abs=0.5 / len(outside_N)
    )
    assert outside_N.any()
    versions = {row["weight_version"] for row in pq.read_table(folder.rollouts_path(5)).to_pylist()}
    assert versions == {sum(step[NUM_UPDATES.name] for step in steps_of(folder)[:2])}


CORRECTED = (
    "algorithm=decoupled",
    "algorithm.correction={kind: truncated_importance, cap: 2.0}",
    "rollout.lag=2",
    "optimizer.learning_rate=0.01",
    "num_steps=4",
    "checkpoint.every_num_steps=1",
    "checkpoint.keep_last=9",
)


@pytest.mark.full
def test_what_the_sampling_weights_say_in_the_trainer_comes_with_a_lagged_batch(runs, same_record):
    """Three anchors at once: engine and trainer at sampling for the correction, the start of the step."""
    folder = runs.train(*CORRECTED, "experiment_name=three_anchors")
    *_, batch = read_lagged(folder.checkpoint_path(3))
    groups = batch.groups
    behavior = [rollout.behavior_logprobs for group in groups for rollout in group.rollouts]
    found_N, engine_N = (
        torch.cat([torch.tensor(logprobs) for logprobs in per_rollout])
        for per_rollout in (behavior, [one.completion.logprobs for g in groups for one in g.rollouts])
    )
    assert not found_N.equal(engine_N)
    expected_N = logprobs_by_checkpoint(folder, 2, groups)
    torch.testing.assert_close(found_N, expected_N, rtol=0.0, atol=1e-4)
    last = steps_of(folder)[-1]
    assert last[KL_BEFORE_UPDATE.name] > 1e-4
    assert last[OUTSIDE_BEFORE_UPDATE_FRAC.name] == 0.0, "the window is around the start of the step"
    assert last["time/behavior_s"] > 0.0
    killed = runs.killed_after(2, *CORRECTED, "experiment_name=anchors_killed")
    same_record(runs.resume(killed), folder, step=4)


def logprobs_by_checkpoint(folder, step, groups):
    """Log-probabilities of the groups' tokens, one behind the other, by transformers itself."""
    policy = AutoModelForCausalLM.from_pretrained(folder.checkpoint_path(step) / "policy")
    found = []
    for group in groups:
        first = len(group.prompt_token_ids)
        for rollout in group.rollouts:
            tokens = torch.tensor([[*group.prompt_token_ids, *rollout.completion.token_ids]])
            with torch.no_grad():
                logprob_TV = policy(tokens).logits[0, first - 1 : -1].log_softmax(dim=-1)
            found.append(logprob_TV.gather(1, tokens[0, first:, None])[:, 0])
    return torch.cat(found)


@pytest.mark.full
def test_with_weights_that_do_not_move_every_ratio_of_an_old_batch_is_one(runs):
    still = ("rollout.lag=4", "optimizer.learning_rate=1e-30", "num_steps=6", "experiment_name=still")
    for step in steps_of(runs.train(*still)):
        assert step[RATIO_MAX.name] == pytest.approx(1.0, abs=1e-4)
        assert step[KL_BEFORE_UPDATE.name] == pytest.approx(0.0, abs=1e-8)
        assert step[OUTSIDE_BEFORE_UPDATE_FRAC.name] == 0.0


@pytest.mark.full
def test_run_recorded_with_engines_beside_it_is_resumed_inside_to_the_same_end(
    runs, undisturbed, same_record, capsys
):
    folder = runs.killed_after(2, *LAGGED, "experiment_name=recorded_beside")
    record = json.loads(folder.config_file.read_text())
    record["rollout"] |= {"placement": "beside", "num_engines": 2, "engine_timeout_s": 1800.0}
    folder.write_config(record)
    assert main(["train", "--resume", folder.path.name, f"runs_dir={runs.runs_dir}"]) == 0
    note = "rollout.placement=beside was removed; this run uses rollout.placement=inside"
    assert f"note: {note}\n" in capsys.readouterr().out
    assert note in folder.log_file.read_text()
    same_record(folder, undisturbed, step=4)


def rows_at(path):
    return pq.read_table(path).to_pylist()


def test_an_evaluation_is_by_the_weights_of_its_step_whatever_is_sampled_ahead(runs, deep):
    """The checkpoint of step 6 asked anew gives the rows that the run had there."""
    checkpoint = EvaluatedCheckpoint(run=deep.name, step=6, seed=0)
    trained, policy = from_json(deep.config_file.read_text()), deep.checkpoint_path(6) / "policy"
    settings = checkpoint_evaluation(
        trained, checkpoint, policy=policy, overrides=("tracking.figures=false",)
    )
    anew = RunFolder(run_evaluation(settings))
    rows = [rows_at(run.evaluation_path("arithmetic-test", 6)) for run in (anew, deep)]
    assert rows[0] == rows[1]
    assert {row["logprob_sum"] for row in rows[0]} != {
        row["logprob_sum"] for row in rows_at(deep.evaluation_path("arithmetic-test", 0))
    }


SERVED = (
    "rollout=vllm_cpu",
    "rollout.placement=server",
    "rollout.num_servers=2",
    "rollout.max_mismatch=null",  # the stand-in's log-probabilities are no model's
    "rollout.lag=1",
    "model.head_dim=32",
    "num_steps=4",
    "checkpoint.every_num_steps=1",
)


@pytest.fixture
def served(runs, monkeypatch):
    """A run whose batches two stand-ins for vLLM's server sample during the updates."""
    monkeypatch.setattr(servers, "ServerProcess", partial(ServerProcess, module="tests.server_stand_in"))
    if not (runs.runs_dir / "served").is_dir():
        runs.train(*SERVED, "experiment_name=served")
    return runs.only("served")


def test_servers_sample_a_batch_during_the_update_before_it(served):
    steps = steps_of(served)
    assert [step[STALENESS_STEPS.name] for step in steps] == [0, 1, 1, 1]
    overlaps = [step.get(OVERLAP_S.name, 0.0) for step in steps]
    assert overlaps[0] == 0.0
    assert all(seconds > 0.0 for seconds in overlaps[1:])
    assert all(step[ENGINE_IDLE_S.name] >= 0.0 for step in steps)


@pytest.mark.full
def test_next_batch_is_requested_before_the_last_one_is_compared(runs, served, monkeypatch):
    """The comparison waits for the request that its servers have to get meanwhile."""
    generate, compared = ServerEngine.generate_by, LaggedSteps._measured_by_sampling_weights
    requested, found = threading.Event(), []

    def note_request(self, version, requests, sampling):
        if threading.current_thread().name == "sampling-beside":
            requested.set()
        return generate(self, version, requests, sampling)

    def wait_for_request(self, state, step, batch):
        if step > 2 and step < 5:  # the batch of step 5 is the last one
            found.append(requested.wait(30.0))
            requested.clear()
        return compared(self, state, step, batch)

    monkeypatch.setattr(ServerEngine, "generate_by", note_request)
    monkeypatch.setattr(LaggedSteps, "_measured_by_sampling_weights", wait_for_request)
    runs.train(*SERVED, "experiment_name=requested_first")
    assert found == [True, True]


@pytest.mark.full
def test_served_run_killed_and_resumed_equals_an_undisturbed_one(runs, served, same_record):
    folder = runs.killed_after(2, *SERVED, "experiment_name=served_killed")
    same_record(runs.resume(folder), served, step=4)


@pytest.mark.full
def test_three_batches_at_a_time_are_those_that_are_sampled_one_after_the_other(runs, served, same_record):
    """Weights that cannot be kept make each batch wait for the one before it."""
    deep = (*SERVED, "rollout.lag=3", "num_steps=6")
    folder = runs.train(*deep, "checkpoint.every_num_steps=6", "experiment_name=served_deep")
    steps = steps_of(folder)
    assert [step[STALENESS_STEPS.name] for step in steps] == [0, 1, 2, 3, 3, 3]
    assert [step[QUEUE_BATCHES.name] for step in steps] == [0, 3, 3, 3, 3, 3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerEngine, "keeps_weights", False)
        one_by_one = runs.train(*deep, "checkpoint.every_num_steps=6", "experiment_name=served_waiting")
    same_record(folder, one_by_one, step=6)
    killed = runs.killed_after(2, *deep, "experiment_name=served_deep_killed")
    same_record(runs.resume(killed), folder, step=6)


@pytest.mark.full
def test_continuous_sampling_records_versions_and_drops_what_is_too_old(runs, served, monkeypatch):
    monkeypatch.setenv("STAND_IN_DELAY_S", "0.3")
    line = (*SERVED, "rollout.continuous=true", "num_steps=6", "experiment_name=continuous")
    folder = runs.train(*line)
    steps = steps_of(folder)
    assert len(steps) == 6
    assert all(step[STALENESS_STEPS.name] <= 1.0 for step in steps)
    assert sum(step[MIXED_WEIGHTS_FRAC.name] for step in steps) > 0.0
    assert all(step[NUM_GROUPS_DROPPED.name] >= 0.0 for step in steps)
    rows = [row for step in range(1, 7) for row in rows_at(folder.rollouts_path(step))]
    mixed = [row for row in rows if row["spans"] is not None]
    assert mixed
    for row in mixed:
        versions, starts, ends = zip(*row["spans"], strict=True)
        assert row["weight_version"] == versions[0] < versions[-1]
        assert (*starts[1:], row["num_tokens"]) == ends
    assert "not repeatable" in folder.log_file.read_text()
    resumed = runs.resume(folder, "num_steps=8")
    assert len(steps_of(resumed)) == 8
    assert all(thread.name != "sampling-continuously" for thread in threading.enumerate())


def test_an_update_that_fails_ends_the_sampling_beside_it(runs, served, monkeypatch):
    def fail(self, step):
        raise RuntimeError("the optimizer failed")

    monkeypatch.setattr(PolicyOptimizer, "step", fail)
    with pytest.raises(RuntimeError, match="the optimizer failed"):
        runs.train(*SERVED, "experiment_name=failing_update")
    assert all(thread.name != "sampling-beside" for thread in threading.enumerate())


def test_sampling_that_fails_ends_the_run_with_its_own_message(runs, served, monkeypatch):
    generate = ServerEngine.generate_by

    def fail_beside_an_update(self, version, requests, sampling):
        if threading.current_thread() is not threading.main_thread():
            raise EngineError("the engine failed")
        return generate(self, version, requests, sampling)

    monkeypatch.setattr(ServerEngine, "generate_by", fail_beside_an_update)
    with pytest.raises(EngineError, match="the engine failed"):
        runs.train(*SERVED, "experiment_name=failing_sampler")
