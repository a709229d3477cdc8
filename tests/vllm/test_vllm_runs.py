"""Whole runs with real vLLM in this process: they learn, and weights are never stale."""

from __future__ import annotations

import os

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.pretrained import pretrained_folder
from tests.vllm.settings import BARE, ENGINE, SMALL
from transformers import AutoModelForCausalLM

from atrium.assemble.graders import build_grader
from atrium.assemble.training import run_training
from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import (
    MISMATCH_KL,
    MISMATCH_MAX,
    MISMATCH_MEAN,
    NUM_UPDATES,
    OVERLAP_S,
    RATIO_MAX,
    REWARD,
    STALENESS,
)
from atrium.base.recorded import read_object
from atrium.cli import main
from atrium.config.compose import compose
from atrium.runs.run_folder import RunFolder
from atrium.train.continuous import ContinuousSteps

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

EXACT = 1e-4


def train(runs_dir, *overrides, base=SMALL):
    """The metrics of a run's steps, in order, and its folder."""
    lines = [*base, f"runs_dir={runs_dir}", *overrides]
    config = compose(lines)
    with build_grader(config.grader, config.model) as grader:
        folder = RunFolder(run_training(config, grader, lines))
    return list(read_json_lines(folder.metrics_file).records), folder


def test_twenty_five_steps_teach_the_policy_and_its_weights_always_arrive(tmp_path):
    steps, folder = train(tmp_path, "num_steps=25")
    assert len(steps) == 25
    assert steps[0][REWARD.name] < 0.2
    assert steps[-1][REWARD.name] > 0.9
    assert max(step[MISMATCH_MAX.name] for step in steps) < EXACT
    assert all(step[STALENESS.name] == 0.0 for step in steps)
    assert (folder.checkpoint_path(25) / "policy" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm.correction={kind: truncated_importance, cap: 2.0}",),
        ("algorithm.correction={kind: masked_importance, lower: 0.5, upper: 5.0}",),
        ("algorithm.correction={kind: masked_importance, lower: 0.5, upper: 2.0, level: sequence_mean}",),
        ("algorithm.correction={kind: sequence_rejection, estimator: k3, bound: 0.01}",),
        ("algorithm=dppo_binary_tv",),
        ("algorithm=minirl",),
        (
            "compute.behavior_logprobs=recompute",
            "algorithm.correction={kind: truncated_importance, cap: 2.0}",
        ),
    ],
    ids=[
        "tis",
        "icepop",
        "mis over sequences",
        "sequence rejection",
        "rollout anchor",
        "both anchors",
        "recomputed behavior and tis",
    ],
)
def test_corrections_and_anchors_take_the_engines_log_probabilities(tmp_path, overrides):
    steps, _ = train(tmp_path, "num_steps=2", *overrides)
    for step in steps:
        assert step[NUM_UPDATES.name] == 2
        assert step[MISMATCH_MAX.name] < EXACT


def test_a_batch_that_is_sampled_ahead_is_stale_by_one_step_and_still_compared_at_equal_weights(tmp_path):
    steps, _ = train(tmp_path, "num_steps=4", "rollout.lag=1", "optimizer.num_minibatches=1")
    assert [step[STALENESS.name] for step in steps] == [0.0, 1.0, 1.0, 1.0]
    assert max(step[MISMATCH_MAX.name] for step in steps) < EXACT
    assert steps[1][RATIO_MAX.name] > 1.001


def test_adapters_are_merged_on_their_way_to_the_engine_and_learn(tmp_path):
    steps, folder = train(
        tmp_path, "num_steps=12", "model.lora={rank: 8, alpha: 16}", "optimizer.learning_rate=2e-2"
    )
    assert max(step[MISMATCH_MAX.name] for step in steps) < EXACT
    assert steps[-1][REWARD.name] > steps[0][REWARD.name] + 0.2
    assert (folder.checkpoint_path(12) / "policy" / "adapter" / "adapter_model.safetensors").is_file()


def test_a_sampler_in_another_precision_is_measured_and_stays_below_its_bound(tmp_path):
    steps, _ = train(tmp_path, "num_steps=2", "compute.dtype=bfloat16")
    for step in steps:
        assert EXACT < step[MISMATCH_MEAN.name] < 0.1
        assert 0.0 < step[MISMATCH_KL.name] < 0.01


def train_pretrained(runs_dir, *overrides):
    """Two steps of SmolLM2 with a server, which samples the second batch while the first is trained."""
    lines = (
        "experiment=smollm2",
        "model=hub",
        f"model.source={pretrained_folder()}",
        "rollout.context_length=256",
        "rollout.kv_cache_mb=256",
        "rollout.num_prompts=1",
        "rollout.placement=server",
        "model.prompt.stop=[]",  # servers find no stop strings
        "rollout.lag=1",
        "optimizer.num_minibatches=1",
        "num_steps=2",
        "dataset.num_validation=1",
        "dataset.num_test=1",
    )
    return train(runs_dir, *lines, *overrides, base=(*ENGINE, *BARE))


def test_pretrained_model_sampled_by_a_server_passes_the_checks_in_bfloat16(tmp_path):
    steps, folder = train_pretrained(tmp_path, "compute.dtype=bfloat16")
    assert all(EXACT < step[MISMATCH_MEAN.name] < 0.05 for step in steps)
    assert [step[STALENESS.name] for step in steps] == [0.0, 1.0]
    assert steps[1][OVERLAP_S.name] > 0.0
    assert read_object(folder.provenance_file)[0]["engine"]["servers"] == 1


def test_weights_change_within_completions_at_the_tokens_that_are_recorded(tmp_path, monkeypatch):
    """Each part of a completion has the log-probabilities of the weights that its span names; about 40 s."""
    next_group, groups = ContinuousSteps._next_group, []

    def note_group(self, step):
        groups.append(next_group(self, step))
        return groups[-1]

    monkeypatch.setattr(ContinuousSteps, "_next_group", note_group)
    line = ("rollout.placement=server", "rollout.continuous=true", "rollout.lag=1", "rollout.max_num_seqs=2")
    steps, folder = train(
        tmp_path, *line, "num_steps=4", "checkpoint.every_num_steps=1", "checkpoint.keep_last=9"
    )
    assert all(step["rollout/staleness_steps"] <= 1.0 for step in steps)
    ends = np.cumsum([step[NUM_UPDATES.name] for step in steps]).tolist()
    models = {
        version: AutoModelForCausalLM.from_pretrained(folder.checkpoint_path(number) / "policy")
        for number, version in enumerate(ends, 1)
    }
    num_spans = []
    for group in groups:
        for completion in (rollout.completion for rollout in group.rollouts):
            spans = completion.spans or ((completion.weight_version, 0, completion.num_tokens),)
            num_spans.append(len(spans))
            tokens = torch.from_numpy(np.concatenate([group.prompt_token_ids, completion.token_ids])).long()
            for version, start, end in spans:
                if not version:
                    continue  # no checkpoint holds the first weights
                with torch.no_grad():
                    logits = models[version](tokens[None]).logits[0, len(group.prompt_token_ids) - 1 : -1]
                own = logits.log_softmax(-1).gather(1, tokens[len(group.prompt_token_ids) :, None])[:, 0]
                assert np.abs(own.numpy() - completion.logprobs)[start:end].max() < 1e-3
    assert max(num_spans) > 1


def test_groups_without_a_signal_are_replaced_while_the_others_are_sampled(tmp_path):
    steps, _ = train(
        tmp_path,
        "num_steps=2",
        "rollout.group_size=2",
        "algorithm.group_filter={kind: resample, max_num_rounds: 8}",
    )
    for step in steps:
        assert 16 < step["rollout/num_groups_sampled"] <= 128


def test_a_run_leaves_no_process_and_no_process_group(tmp_path):
    import psutil

    this = psutil.Process(os.getpid())
    before = this.children(recursive=True)  # such as what earlier engines were forked from
    train(tmp_path, "num_steps=1")
    assert not torch.distributed.is_initialized()
    assert this.children(recursive=True) == before


def test_checkpoint_is_evaluated_alike_inside_and_by_two_servers(tmp_path, capsys):
    _, folder = train(tmp_path, "num_steps=2")
    arguments = ["evaluate", "--run", folder.path.name, f"runs_dir={tmp_path}", "evaluation.num_samples=2"]
    found = []
    for num, placed in enumerate(((), ("rollout.placement=server", "rollout.num_servers=2"))):
        assert main([*arguments, *placed, f"experiment_name=evaluated_{num}"]) == 0
        printed = capsys.readouterr().out
        assert "engine vllm" in printed
        assert ("servers 2" in printed) == bool(placed)
        (rows_file,) = tmp_path.glob(f"evaluated_{num}/*/evaluations/*/step-000002.parquet")
        found.append(pq.read_table(rows_file).to_pylist())
    assert len(found[0]) == 16
    assert all(row["logprob_sum"] < 0.0 and row["num_tokens"] > 0 for row in found[0])
    assert [row["text"] for row in found[0]] == [row["text"] for row in found[1]]
