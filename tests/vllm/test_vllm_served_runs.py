"""Runs and an evaluation that one real vLLM server samples for."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.pretrained import pretrained_folder
from tests.vllm.settings import BARE, ENGINE
from tests.vllm.test_vllm_runs import EXACT, train
from transformers import AutoModelForCausalLM

from atrium.base.metrics import MISMATCH_MEAN, NUM_UPDATES, OVERLAP_S, STALENESS
from atrium.base.recorded import read_object
from atrium.cli import main
from atrium.train.continuous import ContinuousSteps

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


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


@pytest.mark.release
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
        tmp_path,
        *line,
        "num_steps=3",
        "rollout.num_prompts=8",
        "checkpoint.every_num_steps=1",
        "checkpoint.keep_last=9",
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


@pytest.mark.release
def test_checkpoint_is_evaluated_alike_inside_and_by_a_server(tmp_path, capsys):
    _, folder = train(tmp_path, "num_steps=2")
    arguments = ["evaluate", "--run", folder.path.name, f"runs_dir={tmp_path}", "evaluation.num_samples=2"]
    found = []
    for num, placed in enumerate(((), ("rollout.placement=server",))):
        assert main([*arguments, *placed, f"experiment_name=evaluated_{num}"]) == 0
        printed = capsys.readouterr().out
        assert "engine vllm" in printed
        assert ("servers 1" in printed) == bool(placed)
        (rows_file,) = tmp_path.glob(f"evaluated_{num}/*/evaluations/*/step-000002.parquet")
        found.append(pq.read_table(rows_file).to_pylist())
    assert len(found[0]) == 16
    assert all(row["logprob_sum"] < 0.0 and row["num_tokens"] > 0 for row in found[0])
    assert [row["text"] for row in found[0]] == [row["text"] for row in found[1]]
