"""The choice of the memory split between vLLM and the trainer for `rollout=auto` on a single GPU.

A split consists of vLLM's share of the memory and its sleep level. The chosen split has the shortest
predicted training step of all splits that fit. It is recorded like a setting on the command line. This module
does not import torch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from atrium.assemble.fitting import changed
from atrium.assemble.memory import PROMPT_TOKENS, USABLE_FRAC, known_shape, planned_memory, settled
from atrium.base.errors import ConfigError
from atrium.config.compose import leaves_engine_open
from atrium.config.schema import RunConfig
from atrium.engines.settings import VllmSettings
from atrium.models.shape import ModelShape
from atrium.planning.devices import find_gpu
from atrium.planning.duration import planned_run
from atrium.planning.memory import peak_by_phase

_WORTH_IT = 0.98
"""A split replaces the best one so far if its training step takes less than this fraction of the time."""


def with_split(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration with the memory split that is predicted to be fastest on this GPU.

    `overrides` are those from which the configuration was composed. The configuration is returned unchanged
    if they do not leave `rollout.engine` at `auto`, if the run uses a CPU, if the shape of the model or the
    GPU memory is unknown, or in the cases listed in `fastest_split`.
    """
    from atrium.assemble.checks import device_bytes, gpu_of

    shape = known_shape(config)
    if config.compute.device == "cpu" or shape is None:
        return config
    return with_split_of(config, overrides, shape, gpu_of(config), device_bytes(config))


def with_split_of(
    config: RunConfig, overrides: Sequence[str], shape: ModelShape, gpu_name: str, num_bytes: int | None
) -> RunConfig:
    """Return what `with_split` returns for a given model and GPU, which need not be on this machine.

    `shape` is the shape of the model, `gpu_name` the name of the GPU, and `num_bytes` its memory, or None if
    the memory is unknown.
    """
    if num_bytes is None or not leaves_engine_open(overrides):
        return config
    return fastest_split(config, shape, gpu_name, num_bytes)


def fastest_split(config: RunConfig, shape: ModelShape, gpu_name: str, num_bytes: int) -> RunConfig:
    """Return the configuration with the GPU share and sleep level of vLLM that are predicted to be fastest.

    The configuration is returned unchanged if the engine is not vLLM or runs as servers, if the run has
    several processes, if `rollout.kv_cache_mb` is set, or if no split is clearly faster. A GPU of unknown
    speed is treated as an H100. `max_num_seqs` is not changed, since a full KV cache limits the number of
    active rows anyway. The precision of the cache is not changed, since it affects the samples.
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
    """Return vLLM's largest share of GPU memory (a multiple of 0.01 up to 0.9) that lets all phases fit.

    `recomputes` determines whether updates recompute activations. The result is 0.01 if no larger share fits.
    """
    run = changed(config, compute={"recompute_activations": recomputes})

    def fits(percent: int) -> bool:
        one = changed(run, rollout={"gpu_memory_fraction": percent / 100})
        small = changed(one, compute={"micro_batch_tokens": PROMPT_TOKENS + run.rollout.max_new_tokens})
        items = planned_memory(small, shape, device_bytes=num_bytes)
        return max(peak_by_phase(items).values()) <= USABLE_FRAC * num_bytes

    return (bisect_left(range(2, 91), True, key=lambda percent: not fits(percent)) + 1) / 100


def _step_s(config: RunConfig, shape: ModelShape, gpu_name: str, num_bytes: int) -> float:
    """Return the predicted seconds of a step, or infinity if the configuration does not fit."""
    try:
        run = settled(config, shape, PROMPT_TOKENS, num_bytes)
    except ConfigError:  # the model and one completion do not fit into the engine's share
        return math.inf
    items = planned_memory(run, shape, device_bytes=num_bytes)
    planned = planned_run(run, shape, gpu_name, PROMPT_TOKENS, num_bytes)
    if planned is None or max(peak_by_phase(items).values()) > USABLE_FRAC * num_bytes:
        return math.inf
    return planned.step_s
