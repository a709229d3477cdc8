"""Runs that train adapters: they learn, leave plain policies, and go on where they were stopped."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from atrium.assemble.policies import build_policy, restore_weights
from atrium.base.errors import CheckpointError, ConfigError
from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import MISMATCH_MAX, REFERENCE_KL, REWARD
from atrium.cli import main
from atrium.models.policy import load_policy
from atrium.runs.listener import Listener

LORA = ("model.lora={rank: 4, alpha: 8}", "optimizer.learning_rate=0.01", "checkpoint.every_num_steps=1")


def steps_of(folder):
    return list(read_json_lines(folder.metrics_file).records)


@pytest.fixture
def undisturbed(runs):
    if not (runs.runs_dir / "adapted").is_dir():
        runs.train(*LORA, "algorithm=grpo_kl", "num_steps=4", "experiment_name=adapted")
    return runs.only("adapted")


def test_the_engine_samples_from_what_the_adapters_have_become(undisturbed):
    assert max(step[MISMATCH_MAX.name] for step in steps_of(undisturbed)) < 1e-4


def test_a_frozen_reference_is_the_policy_without_its_adapters(undisturbed):
    kl = [step[REFERENCE_KL.name] for step in steps_of(undisturbed)]
    assert abs(kl[0]) < 1e-3 < kl[-1]
    assert not (undisturbed.checkpoint_path(4) / "reference.safetensors").exists()


def test_a_checkpoint_is_a_plain_policy_and_the_optimizer_knows_adapters_only(undisturbed):
    folder = undisturbed.checkpoint_path(4)
    state = load_file(folder / "optimizer.safetensors")
    assert state
    assert all(".lora_A." in name or ".lora_B." in name for name in state)
    policy = load_policy(folder / "policy", dtype=torch.float32, device="cpu")
    assert policy.num_parameters == policy.model.num_parameters()
    assert json.loads((folder / "policy" / "adapter" / "adapter_config.json").read_text())["r"] == 4


@pytest.mark.full
@pytest.mark.parametrize("step", [1, 3])
def test_a_run_with_adapters_killed_and_resumed_equals_an_undisturbed_one(
    runs, undisturbed, same_record, step
):
    killed = (*LORA, "algorithm=grpo_kl", "num_steps=4", f"experiment_name=adapted_killed_{step}")
    folder = runs.resume(runs.killed_after(step, *killed))
    same_record(folder, undisturbed, step=4)


def test_adapters_over_another_base_are_refused(runs, undisturbed):
    config = runs.config(*LORA, "algorithm=grpo_kl")
    policy = build_policy(config, runs.runs_dir / ".cache", Listener())
    file = undisturbed.checkpoint_path(4) / "policy" / "model.safetensors"
    restore_weights(policy, file.parent)
    with torch.no_grad():
        policy.model.model.norm.weight.add_(0.1)
    with pytest.raises(CheckpointError, match=r"another model .*\(model\.norm\.weight differs\)"):
        restore_weights(policy, file.parent)


def test_unknown_maps_end_the_run_in_one_line(runs):
    with pytest.raises(ConfigError, match=r"model\.lora\.target_modules contains c_attn"):
        runs.train("model.lora={rank: 4, alpha: 8, target_modules: [c_attn]}", "experiment_name=wrong")


def test_export_writes_the_merged_policy_or_the_adapters(runs, undisturbed, tmp_path, capsys):
    arguments = ["export", undisturbed.name, f"--runs-dir={runs.runs_dir}"]
    assert main([*arguments, "--to", str(tmp_path / "merged")]) == 0
    assert not (tmp_path / "merged" / "adapter").exists()
    assert main([*arguments, "--adapter", "--to", str(tmp_path / "adapter")]) == 0
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "atrium.json",
    }
    said = capsys.readouterr().out
    assert "PeftModel" in said
    assert f"atrium evaluate --run {undisturbed.path} --step " in said


@pytest.mark.full
def test_adapters_learn_the_built_in_task(runs):
    folder = runs.train(
        "model.lora={rank: 8, alpha: 16}",
        "reward=format",
        "num_steps=12",
        "rollout.num_prompts=16",
        "rollout.max_new_tokens=24",
        "optimizer.learning_rate=0.02",
        "optimizer.num_warmup_steps=0",
        "experiment_name=adapters_learn",
    )
    rewards = [step[REWARD.name] for step in steps_of(folder)]
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.6
