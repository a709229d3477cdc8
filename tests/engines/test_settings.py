"""What engines declare, and that nobody else asks for their names."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest

from atrium.base.errors import ConfigError
from atrium.base.records import Phase
from atrium.config.compose import compose, from_json, to_json
from atrium.engines.declaration import EngineDemand
from atrium.engines.settings import EngineSettings
from atrium.models.shape import read_shape

PACKAGE = Path(__file__).resolve().parents[2] / "platform" / "atrium"
QWEN3_1_7B = read_shape(compose(["model=qwen3_1_7b"]).model.architecture)
DEMAND = EngineDemand(
    dtype="bfloat16",
    weight_bytes=4,
    is_apart=False,
    num_ranks=1,
    rollout_tokens=1 << 20,
    evaluation_tokens=4096,
    device_bytes=80 * 10**9,
)


def engine(*overrides):
    return compose(list(overrides)).rollout


def vllm(**changes):
    return engine("rollout=vllm").model_copy(update=changes)


def sizes(settings, demand=DEMAND):
    return {item.name: item for item in settings.memory(QWEN3_1_7B, demand)}


@pytest.mark.parametrize("name", EngineSettings.kinds)
def test_every_engine_says_what_it_takes(name):
    settings = engine(f"rollout={name}", *(["rollout.source=x"] if name == "bank" else []))
    assert all(item.num_bytes >= 0 and item.phases for item in settings.memory(QWEN3_1_7B, DEMAND))


def test_names_of_engines_stand_in_their_settings_only():
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "engines":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(
                isinstance(part, ast.Constant) and part.value in EngineSettings.kinds
                for part in (node.left, *node.comparators)
            ):
                found += [f"{path.relative_to(PACKAGE)}:{node.lineno}"]
    assert not found


def test_a_token_of_the_cache_takes_a_key_and_a_value_per_layer_and_head():
    def per_token(settings):
        small, large = (settings.model_copy(update={"context_length": size}) for size in (1000, 2000))
        demand = EngineDemand(**{**vars(DEMAND), "device_bytes": None})
        cached = [sizes(one, demand)["engine's cache"].num_bytes for one in (small, large)]
        return (cached[1] - cached[0]) / 1000

    assert per_token(vllm()) == 2 * 28 * 8 * 128 * 2
    assert per_token(vllm(kv_cache_dtype="fp8")) == 2 * 28 * 8 * 128
    # Ranks that share a cache hold their heads of it, and at least one.
    assert per_token(vllm(tensor_parallel=4)) == 2 * 28 * 2 * 128 * 2
    assert per_token(vllm(tensor_parallel=16)) == 2 * 28 * 1 * 128 * 2


@pytest.mark.parametrize("size", range(9_000, 48_000, 1_100))
def test_share_that_the_error_of_a_small_cache_names_is_enough(size):
    with pytest.raises(ConfigError) as error:
        vllm(gpu_memory_fraction=0.1).check_cache(QWEN3_1_7B, "bfloat16", size * 10**6)
    share = float(re.search(r"raise it to (0\.\d\d)", str(error.value))[1])
    vllm(gpu_memory_fraction=share).check_cache(QWEN3_1_7B, "bfloat16", size * 10**6)


@pytest.mark.parametrize(("size", "end"), [(3, "$"), (8, ", or lower rollout.context_length$")])
def test_cache_that_fits_with_no_share_names_no_share(size, end):
    message = f"GB; choose a smaller model{end}"
    with pytest.raises(ConfigError, match=message):
        vllm(gpu_memory_fraction=0.9).check_cache(QWEN3_1_7B, "bfloat16", size * 10**9)


def test_vllm_takes_its_share_of_the_device_and_gives_it_to_updates_where_it_sleeps():
    awake, asleep = sizes(vllm()), sizes(vllm(sleep_level=1))
    assert sum(item.num_bytes for item in awake.values()) == 32 * 10**9
    assert awake["engine's weights"].num_bytes == 2 * QWEN3_1_7B.num_parameters
    assert Phase.UPDATE in awake["engine's cache"].phases
    assert asleep["engine's cache"].phases == (Phase.START, Phase.SAMPLING, Phase.EVALUATION)


def test_memory_on_a_gpu_grows_in_segments_unless_vllm_keeps_pools_of_its_own(monkeypatch, tmp_path):
    def allocator(settings, **given):
        found = dict(given)
        monkeypatch.setattr(os, "environ", found)
        settings.prepare_environment("cuda", tmp_path)
        return found.get("PYTORCH_ALLOC_CONF")

    grows = "expandable_segments:True"
    assert allocator(vllm()) == allocator(engine("rollout=transformers")) == grows
    assert allocator(vllm(sleep_level=1)) is allocator(vllm(tensor_parallel=2)) is None
    assert allocator(vllm(), PYTORCH_ALLOC_CONF="backend:native") == "backend:native"
    assert allocator(vllm(), PYTORCH_CUDA_ALLOC_CONF="backend:native") is None


def test_what_is_decoded_at_once_is_bounded_and_shared_by_processes():
    free = engine("rollout=transformers")
    num_tokens = (1 << 20) // 2  # 256 of 512 samples
    assert sizes(free)["key-value cache"].num_bytes == num_tokens * 2 * 28 * 8 * 128 * 4
    shared = EngineDemand(**{**vars(DEMAND), "num_ranks": 4, "is_apart": True})
    bounded = sizes(free.model_copy(update={"max_batch_tokens": 8192}), shared)
    assert bounded["key-value cache"].num_bytes == 8192 * 2 * 28 * 8 * 128 * 4
    assert bounded["engine's copy of the weights"].num_bytes == 4 * QWEN3_1_7B.num_parameters


@pytest.mark.parametrize(
    ("line", "obstacle"),
    [
        ("compute.device=cpu", "compute.device=cpu is not a GPU"),
        ("rollout.devices=[1, 1]", "rollout.devices=[1, 1] names a GPU twice or one of the trainer's"),
        ("rollout.devices=[1, 0]", "the first 1), but NCCL requires a separate GPU for each process"),
    ],
)
def test_weights_are_sent_to_gpus_of_their_own_or_refused_in_one_line(line, obstacle):
    served = ("rollout=vllm", "compute.device=cuda", "rollout.placement=server", "rollout.num_servers=2")
    sent = (*served, "rollout.weight_transfer=nccl")
    assert engine(*sent, "rollout.devices=[2, 1]").sends_weights
    with pytest.raises(ConfigError, match=re.escape(obstacle)) as raised:
        compose([*sent, line])
    assert str(raised.value).startswith("rollout.weight_transfer=nccl cannot be used")
    assert str(raised.value).endswith("or choose rollout.weight_transfer=host")
    assert engine(*sent).for_evaluation().weight_transfer == "host"


@pytest.mark.parametrize(
    ("urls", "is_afar"),
    [
        ("[http://127.0.0.1:8000,http://localhost:8001]", False),
        ("[http://127.0.0.1:8000,http://10.0.0.2:8000]", True),
    ],
)
def test_nccl_leaves_the_loopback_only_for_servers_at_other_addresses(urls, is_afar):
    sent = ("rollout=vllm", "compute.device=cuda", "rollout.placement=server", "rollout.weight_transfer=nccl")
    assert engine(*sent, f"rollout.servers={urls}").sends_weights_afar is is_afar


def test_what_earlier_runs_recorded_of_sampling_before_the_update_is_read():
    stored = json.loads(to_json(compose([])))
    stored["rollout"]["overlap"] = False
    assert from_json(json.dumps(stored)).rollout.placement == "inside"
    stored["rollout"]["overlap"] = True
    with pytest.raises(ConfigError, match=r"rollout\.overlap=true: .*rollout\.placement=server"):
        from_json(json.dumps(stored))
