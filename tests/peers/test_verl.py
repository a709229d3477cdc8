"""Losses and advantages by verl's signatures, compared with verl's own registered ones on the same tensors.

Run by `make test-peers`, in the environment of .ci/verl/requirements.txt.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]

B, T = 8, 6
MASK_BT = torch.arange(T) < torch.tensor([6, 4, 5, 2, 6, 3, 1, 4])[:, None]
GLOBAL = {"dp_size": 2, "batch_num_tokens": 70, "global_batch_size": 20, "loss_scale_factor": None}
OWN = {
    "dual_clip": ("vanilla", "seq-mean-token-mean", {}),
    "dapo": ("vanilla", "token-mean", {"clip_ratio_high": 0.28, "clip_ratio_c": 1e9}),
    "dr_grpo": ("vanilla", "seq-mean-token-sum-norm", {"clip_ratio_c": 1e9}),
    "gspo": ("gspo", "seq-mean-token-mean", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    "cispo": ("cispo", "token-mean", {"clip_ratio_low": 1.0, "clip_ratio_high": 0.2}),
    "sapo": ("sapo", "seq-mean-token-mean", {}),
}
"""By Atrium's preset: verl's loss, its reduction, and the settings that make it the same method."""


def tensors():
    generator = torch.Generator().manual_seed(3)
    old_BT = -torch.rand(B, T, generator=generator) - 0.1
    return {
        "old_log_prob": old_BT,
        "log_prob": old_BT + 0.3 * torch.randn(B, T, generator=generator),
        "advantages": torch.randn(B, 1, generator=generator) * MASK_BT,
        "response_mask": MASK_BT,
    }


def actor(batch, **changes):
    from verl.workers.config import ActorConfig

    config = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=B, rollout_n=4, **changes)
    config.global_batch_info.update(batch)
    return config


def gradient(name, mode, config, **more):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    import atrium.peers.verl_losses  # noqa: F401 - registers

    given = tensors() | more
    given["log_prob"] = given["log_prob"].clone().requires_grad_()
    loss, measured = get_policy_loss_fn(name)(**given, loss_agg_mode=mode, config=config)
    loss.backward()
    return given["log_prob"].grad, measured


@pytest.mark.parametrize("batch", [GLOBAL, {}], ids=["global", "local"])
@pytest.mark.parametrize("method", OWN)
def test_gradients_are_those_of_verls_own_loss(method, batch):
    name, mode, changes = OWN[method]
    expected_BT, theirs = gradient(name, mode, actor(batch, **changes))
    found_BT, ours = gradient(f"atrium/{method}", mode, actor(batch))
    torch.testing.assert_close(found_BT, expected_BT, rtol=2e-5, atol=1e-7)
    assert expected_BT.abs().max() > 0
    assert ours["actor/ppo_kl"] == pytest.approx(theirs["actor/ppo_kl"], abs=1e-6)


def test_it_is_atrium_that_computes_them():
    expected_BT, _ = gradient("vanilla", "token-mean", actor(GLOBAL, clip_ratio_high=0.1, clip_ratio_low=0.3))
    found_BT, _ = gradient("atrium/dapo", "token-mean", actor(GLOBAL))
    assert (found_BT - expected_BT).abs().max() > 1e-3


def test_rollout_weights_multiply_the_policys_term():
    weight_BT = torch.rand(B, T, generator=torch.Generator().manual_seed(4)) + 0.5
    for method in ("dual_clip", "cispo"):
        name, mode, changes = OWN[method]
        expected_BT, _ = gradient(name, mode, actor(GLOBAL, **changes), rollout_is_weights=weight_BT)
        found_BT, _ = gradient(f"atrium/{method}", mode, actor(GLOBAL), rollout_is_weights=weight_BT)
        torch.testing.assert_close(found_BT, expected_BT, rtol=2e-5, atol=1e-7)


def test_advantages_are_verls_own():
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import atrium.peers.verl_losses  # noqa: F401 - registers

    reward_B = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    last_BT = torch.arange(T) == MASK_BT.sum(dim=1)[:, None] - 1
    given = {
        "token_level_rewards": last_BT * reward_B[:, None],
        "response_mask": MASK_BT,
        "index": np.array(["a"] * 4 + ["b"] * 4, dtype=object),
    }
    expected_BT, _ = get_adv_estimator_fn("grpo")(**given)
    found_BT, _ = get_adv_estimator_fn("atrium/atr")(**given, config=None)
    torch.testing.assert_close(found_BT, expected_BT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "mode", "said"),
    [
        ("gvpo", "token-mean", "requires whole groups"),
        (
            "dppo_binary_tv",
            "seq-mean-token-sum-norm",
            "set actor_rollout_ref.rollout.calculate_log_probs=True",
        ),
        ("grpo_kl", "seq-mean-token-mean", "set actor_rollout_ref.actor.use_kl_loss=True"),
        ("topr", "seq-mean-token-sum", "requires rewards in addition to advantages"),
        ("atr", "token-mean", "choose loss_agg_mode=seq-mean-token-mean"),
    ],
)
def test_what_cannot_run_is_one_line(method, mode, said):
    from atrium.base.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        gradient(f"atrium/{method}", mode, actor(GLOBAL))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_methods_stand_in_a_file(tmp_path, monkeypatch):
    from atrium.base.errors import ConfigError
    from atrium.peers import verl_losses

    path = tmp_path / "settings.yaml"
    monkeypatch.setenv(verl_losses.SETTINGS_VARIABLE, str(path))
    path.write_text("clip_higher: [divergence.epsilon_high=0.5]\n")
    assert verl_losses._typed_settings() == {"clip_higher": ("divergence.epsilon_high=0.5",)}
    wrong = {"atr: 3\n": "a list of settings per method", "atr: [divergence.dleta=1]\n": "did you mean"}
    for text, said in wrong.items():
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            verl_losses.register()


def test_verl_loads_them_where_an_environment_variable_says_so(tmp_path):
    """And what is wrong in the settings ends the worker as it starts."""
    code = "from verl.trainer.ppo.core_algos import get_policy_loss_fn as get; print(get('atrium/atr'))"
    path = tmp_path / "settings.yaml"
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "atrium.peers.verl_losses"}
    environment["ATRIUM_VERL_SETTINGS"] = str(path)
    for text, said in (
        ("atr: [divergence.delta=0.05]", "divergence.delta=0.05"),
        ("gvpo: []", "whole groups"),
    ):
        path.write_text(text)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert said in done.stdout + done.stderr
        assert (done.returncode == 0) == text.startswith("atr")


def test_actor_updates_of_all_methods_that_verl_can_run_equal_those_of_a_plain_loop(tmp_path):
    """verl's own worker trains a model on the CPU, in two micro-batches of four rows."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from atrium.config.presets import read_presets
    from atrium.peers.trainers import VERL

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=48, num_hidden_layers=2, initializer_range=0.3, **shape)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "atrium.peers.verl_losses"}
    environment |= {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "MASTER_PORT": str(port)}
    script = Path(__file__).with_name("verl_actor.py")
    done = subprocess.run([sys.executable, script, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    missing, vanilla = found.pop("missing"), found.pop("vanilla")
    assert found.keys() == {preset.name for preset in read_presets() if not VERL.lacks(preset.method)}
    assert {"dppo_binary_tv", "dppo_binary_kl"} <= found.keys()
    for method, (update, plain) in found.items():
        assert update > 0.0, method
        assert update == pytest.approx(plain, rel=2e-5), method
    assert found["dual_clip"][0] == pytest.approx(vanilla, rel=1e-6)
    assert abs(found["dppo_binary_tv"][0] / found["dr_grpo"][0] - 1.0) > 0.1  # the engine's numbers count
    assert missing == (
        "dppo_binary_tv requires rollout_log_probs, which verl's batch does not contain; "
        "set actor_rollout_ref.rollout.calculate_log_probs=True"
    )
