"""What does not fit is refused before it is loaded, with settings that fit; what fits is let through."""

from __future__ import annotations

import re
from functools import cache

import pytest

from atrium.assemble.fitting import fitting_changes
from atrium.assemble.memory import check_memory, known_shape, plan_notes, planned_memory
from atrium.base.errors import ConfigError
from atrium.base.records import MemoryItem, Phase
from atrium.cli import main
from atrium.config.compose import compose
from atrium.config.machine import Machine
from atrium.planning.document import FittedPlan
from atrium.planning.memory import peak_by_phase

GB = 10**9
ONE_GPU = Machine(num_cores=16, requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=1)
QWEN = ("model=qwen3_1_7b",)
"""1.72e9 parameters: 6.9 GB of float32 weights, as much of gradients, twice as much of AdamW's state."""


@cache
def on_one_gpu(*overrides):
    return compose(overrides, machine=ONE_GPU)


def composed(*overrides):
    return on_one_gpu(*QWEN, *overrides)


def check(*overrides, size, **settings):
    config = composed(*overrides)
    check_memory(config, known_shape(config), size * GB, **settings)


@pytest.mark.parametrize("size", [80, 141])
def test_what_fits_is_let_through(size):
    check(size=size)


def test_a_share_that_holds_no_completion_names_the_share_that_does():
    with pytest.raises(ConfigError, match=r"gpu_memory_fraction=0\.1 gives vLLM 4\.8 GB.*raise it to 0\.17"):
        check("rollout.gpu_memory_fraction=0.1", "rollout=vllm", size=48)
    check("rollout=vllm", "rollout.gpu_memory_fraction=0.17", size=48)


def test_a_cache_of_a_given_size_has_to_hold_one_completion():
    with pytest.raises(
        ConfigError,
        match=r"kv_cache_mb must be at least 4480 to hold 40960 tokens, got 100",
    ):
        check("rollout=vllm", "rollout.kv_cache_mb=100", size=80)
    check("rollout=vllm", "rollout.kv_cache_mb=4480", size=80)


def test_an_engine_that_stays_awake_has_to_leave_room_for_the_update():
    with pytest.raises(ConfigError, match=r"update needs at least .*; use rollout\.gpu_memory_fraction"):
        check("rollout=vllm", "rollout.gpu_memory_fraction=0.5", size=48)
    check("rollout=vllm", "rollout.gpu_memory_fraction=0.5", "rollout.sleep_level=1", size=48)


def test_an_engine_that_sleeps_has_to_find_room_when_it_wakes_beside_the_optimisers_state():
    lines = ("rollout=vllm", "rollout.gpu_memory_fraction=0.8", "rollout.sleep_level=1")
    with pytest.raises(ConfigError, match=r"sampling needs at least 84\.6 GB .*only 80\.0 GB") as error:
        check(*lines, size=80)
    fraction = re.search(r"; use rollout\.gpu_memory_fraction=([\d.]+)$", str(error.value))
    check(*lines, f"rollout.gpu_memory_fraction={fraction[1]}", size=80)
    # Before the first update there is no such state, so that it would start.
    config = composed(*lines)
    items = planned_memory(config, known_shape(config), device_bytes=80 * GB)
    assert peak_by_phase(items)[Phase.START] < 80 * GB < peak_by_phase(items)[Phase.SAMPLING]


def test_an_evaluation_holds_the_weights_only_and_once():
    check("rollout=vllm", "rollout.gpu_memory_fraction=0.9", size=24, trains=False)
    for engine, names in (("vllm", {"engine's weights", "engine's cache"}), ("transformers", set())):
        config = composed(f"rollout={engine}", "rollout.max_new_tokens=512")
        items = planned_memory(config, known_shape(config), device_bytes=24 * GB, trains=False)
        held = {item.name: item.num_bytes for item in items if Phase.START in item.phases}
        assert set(held) == (names or {"bfloat16 weights"})
        assert 3.4 * GB < next(iter(held.values())) < 3.5 * GB  # 2 bytes per weight


@pytest.mark.parametrize("size", [24, 48, 80, 141])
@pytest.mark.parametrize("engine", ["rollout=vllm", "rollout=transformers"])
@pytest.mark.parametrize("model", ["qwen3_0_6b", "qwen3_1_7b"])
def test_settings_that_are_said_to_fit_do(model, engine, size):
    # The cache of transformers does not hold thoughts of 32,768 tokens in 24 GB.
    short = ("evaluation.max_new_tokens=8192",)
    config = on_one_gpu(f"model={model}", engine, *short)
    shape = known_shape(config)

    def plan(run):
        run.rollout.check_cache(shape, run.compute.dtype, size * GB)
        return planned_memory(run, shape, device_bytes=size * GB)

    found = fitting_changes(config, plan, 0.9 * size * GB)
    typed = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", " ".join(found))]
    changed = on_one_gpu(f"model={model}", engine, *short, *typed)
    assert max(peak_by_phase(plan(changed)).values()) <= 0.9 * size * GB
    for one in typed:  # none of them is idle
        fewer = on_one_gpu(f"model={model}", engine, *short, *(other for other in typed if other != one))
        assert max(peak_by_phase(plan(fewer)).values()) > 0.9 * size * GB


def test_a_model_whose_weights_alone_are_too_large_is_given_no_settings():
    config = composed("rollout=transformers")
    shape = known_shape(config)
    assert fitting_changes(config, lambda run: planned_memory(run, shape), 6 * GB) is None


def test_decoding_everything_at_once_is_answered_with_a_number_of_tokens(capsys):
    assert main(["memory", "model=qwen3_1_7b", "rollout=transformers", "--gpu-gb", "141"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-2]
    assert re.search(r"sampling takes \d\d\d\.\d GB; it fits with rollout\.max_batch_tokens=\d+$", verdict)


def test_a_gpu_can_be_planned_for_where_there_is_none(capsys):
    assert main(["memory", "--gpu-gb", "80", "model=qwen3_1_7b"]) == 0
    printed = capsys.readouterr().out
    assert "engine's cache" in printed
    assert "\nit fits in 80.0 GB of GPU memory\ntime is not predicted, " in printed
    assert main(["memory", "--gpu-gb", "0"]) == 2
    assert "--gpu-gb: expected a whole number of at least 1, got 0" in capsys.readouterr().err


def test_a_cache_of_a_given_size_is_named_instead_of_a_share_of_the_gpu():
    (note,) = [
        one for one in plan_notes(composed("rollout=vllm", "rollout.kv_cache_mb=9000")) if "vLLM" in one
    ]
    assert note.startswith("vLLM uses a cache of 9000 MB (rollout.kv_cache_mb)")


def test_a_run_that_needs_the_tenth_that_is_kept_free_does_not_fit_for_that_reason():
    items = (MemoryItem("weights", 75 * GB, (Phase.UPDATE,), "a smaller model"),)
    plan = FittedPlan(items=items, device="cuda", device_bytes=80 * GB, changes=("num_steps=1",))
    assert plan.verdict == (
        "it does not fit in 80.0 GB of GPU memory, a tenth of which is kept free: update takes 75.0 GB; "
        "it fits with num_steps=1"
    )
