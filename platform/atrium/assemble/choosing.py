"""The memory split of `rollout=auto` on one GPU: of those that fit, the one with the shortest predicted step.

What is chosen stands in the run's record like a typed setting. Never torch.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from atrium.assemble.duration import planned_run
from atrium.assemble.fitting import changed
from atrium.assemble.memory import PROMPT_TOKENS, USABLE_FRAC, planned_memory, settled
from atrium.base.errors import ConfigError
from atrium.config.schema import RunConfig
from atrium.engines.settings import VllmSettings
from atrium.models.shape import ModelShape
from atrium.planning.devices import find_gpu
from atrium.planning.memory import peak_by_phase

_WORTH_IT = 0.98
"""A split replaces another one if its step takes at most this share of the time."""


def fastest_split(config: RunConfig, shape: ModelShape, gpu_name: str, num_bytes: int) -> RunConfig:
    """The configuration with vLLM's share of the GPU and its sleep level chosen by prediction.

    As it was for another engine, several processes or servers, and where no choice fits. On a GPU whose speed
    is not known, splits are compared as on an H100. `max_num_seqs` stays, since a full cache bounds what is
    live, and the precision of the cache stays, since it changes what is sampled.
    """
    rollout, compute = config.rollout, config.compute
    is_inside = compute.device == "cuda" and compute.world_size == 1 and rollout.placement == "inside"
    if not (is_inside and isinstance(rollout, VllmSettings) and rollout.kv_cache_mb is None):
        return config
    name = gpu_name if find_gpu(gpu_name) else "H100"
    best, least = config, _step_s(config, shape, name, num_bytes)
    for sleep_level in (None, 1):
        for recomputes in (False, True):
            option = changed(config, rollout={"sleep_level": sleep_level})
            largest = _largest_share(option, shape, num_bytes, recomputes=recomputes)
            option = changed(option, rollout={"gpu_memory_fraction": largest})
            if (seconds := _step_s(option, shape, name, num_bytes)) < _WORTH_IT * least:
                best, least = option, seconds
    return best


def _largest_share(config: RunConfig, shape: ModelShape, num_bytes: int, *, recomputes: bool) -> float:
    """The largest share of the GPU for vLLM, in hundredths, beside which every phase fits; else 0.01."""
    run = changed(config, compute={"recompute_activations": recomputes})

    def fits(percent: int) -> bool:
        one = changed(run, rollout={"gpu_memory_fraction": percent / 100})
        small = changed(one, compute={"micro_batch_tokens": PROMPT_TOKENS + run.rollout.max_new_tokens})
        items = planned_memory(small, shape, device_bytes=num_bytes)
        return max(peak_by_phase(items).values()) <= USABLE_FRAC * num_bytes

    return (bisect_left(range(2, 91), True, key=lambda percent: not fits(percent)) + 1) / 100


def _fits(config: RunConfig, shape: ModelShape, num_bytes: int) -> bool:
    try:
        found = settled(config, shape, PROMPT_TOKENS, num_bytes)
    except ConfigError:  # the share does not hold the model and one completion
        return False
    items = planned_memory(found, shape, device_bytes=num_bytes)
    return max(peak_by_phase(items).values()) <= USABLE_FRAC * num_bytes


def _step_s(config: RunConfig, shape: ModelShape, gpu_name: str, num_bytes: int) -> float:
    """Predicted seconds of a step, infinite where the configuration does not fit."""
    if not _fits(config, shape, num_bytes):
        return math.inf
    planned = planned_run(
        settled(config, shape, PROMPT_TOKENS, num_bytes), shape, gpu_name, PROMPT_TOKENS, num_bytes
    )
    return math.inf if planned is None else planned.step_s
