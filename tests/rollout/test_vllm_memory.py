"""What does not fit is refused before it is loaded, with the setting to change; what fits is let through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atrium.errors import EngineError
from atrium.rollout.vllm_memory import MemoryPlan, ModelShape, check_memory

# Qwen3-1.7B: 3.4 GB in bfloat16, 114,688 bytes of cache a token, 27.5 GB for the trainer.
SHAPE = ModelShape(num_parameters=1_720_574_976, num_layers=28, num_key_value_heads=8, head_size=128)
PLAN = MemoryPlan(
    dtype="bfloat16",
    cache_dtype="bfloat16",
    context_length=40960,
    engine_frac=0.4,
    cache_bytes=None,
    sleeps=False,
)
GB = 10**9


def test_a_token_of_the_cache_takes_a_key_and_a_value_per_layer_and_head():
    assert SHAPE.cache_bytes_per_token("bfloat16") == 2 * 28 * 8 * 128 * 2
    assert SHAPE.cache_bytes_per_token("fp8") == 2 * 28 * 8 * 128


def test_ranks_that_share_a_cache_hold_their_heads_of_it_and_at_least_one():
    assert SHAPE.cache_bytes_per_token("bfloat16", 4) == 2 * 28 * 2 * 128 * 2
    assert SHAPE.cache_bytes_per_token("bfloat16", 16) == 2 * 28 * 1 * 128 * 2


@pytest.mark.parametrize("device_bytes", [80 * GB, 141 * GB])
def test_what_fits_is_let_through(device_bytes):
    check_memory(SHAPE, PLAN, device_bytes=device_bytes)


def test_a_share_that_holds_no_completion_names_the_share_that_does():
    with pytest.raises(EngineError, match=r"gpu_memory_fraction=0\.1 gives vLLM 4\.8 GB.*raise it to 0\.17"):
        check_memory(SHAPE, replace(PLAN, engine_frac=0.1), device_bytes=48 * GB)
    check_memory(SHAPE, replace(PLAN, engine_frac=0.17), device_bytes=48 * GB)


def test_a_share_that_leaves_the_trainer_no_room_names_the_share_that_does():
    with pytest.raises(EngineError, match=r"policy's .* 27\.5 GB and vLLM 24\.0 GB.*to 0\.31 or set rollout"):
        check_memory(SHAPE, replace(PLAN, engine_frac=0.6), device_bytes=40 * GB)
    check_memory(SHAPE, replace(PLAN, engine_frac=0.31), device_bytes=40 * GB)
    check_memory(SHAPE, replace(PLAN, engine_frac=0.6, sleeps=True), device_bytes=40 * GB)


def test_a_model_that_cannot_fit_says_so():
    with pytest.raises(EngineError, match="choose a smaller model or a machine with more memory"):
        check_memory(SHAPE, replace(PLAN, engine_frac=0.9), device_bytes=24 * GB)


def test_what_is_shared_or_kept_elsewhere_is_not_on_the_device():
    # 16 bytes a parameter to train, 8 of them the optimiser's state.
    assert PLAN.trainer_bytes == 16
    assert replace(PLAN, offloads=True).trainer_bytes == 8
    assert replace(PLAN, num_ranks=4).trainer_bytes == 4
    assert replace(PLAN, num_ranks=4, offloads=True).trainer_bytes == 0
    assert replace(PLAN, trains=False, offloads=True).trainer_bytes == 4


def test_an_evaluation_holds_the_weights_only():
    check_memory(SHAPE, replace(PLAN, engine_frac=0.6, trains=False), device_bytes=24 * GB)
    with pytest.raises(EngineError, match=r"the policy's weights take 6\.9 GB"):
        check_memory(SHAPE, replace(PLAN, engine_frac=0.9, trains=False), device_bytes=24 * GB)


def test_a_cache_of_a_given_size_has_to_hold_one_completion():
    with pytest.raises(EngineError, match=r"kv_cache_mb=100 holds no completion of 40960 tokens.*4480; give"):
        check_memory(SHAPE, replace(PLAN, cache_bytes=100 << 20), device_bytes=80 * GB)
    check_memory(SHAPE, replace(PLAN, cache_bytes=4480 << 20), device_bytes=80 * GB)
