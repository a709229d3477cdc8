"""The choice of the micro-batch size and of activation recomputation if these settings are `auto`.

Both values are stored in the run's config.json, which a resumed run reuses. The micro-batch size (in
tokens) is also cached in the runs directory, for other runs with the same model and settings on the same
kind of device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atrium.assemble.memory import needs_recomputation, planned_memory
from atrium.assemble.run import Run
from atrium.assemble.shapes import exact_shape
from atrium.base.atomic import write_text
from atrium.base.errors import MemoryExhaustedError
from atrium.base.recorded import read_object
from atrium.config.schema import RunConfig
from atrium.launch.settings import NodeSettings
from atrium.models.blocks import decoder_blocks
from atrium.planning.memory import OPTIMIZER_STATE, PROXIMAL_STATES
from atrium.train.guard.budget_search import largest_budget, update_fits
from atrium.train.update.updater import PolicyUpdater

_CACHE = "micro_batch_tokens.json"
# `recompute_activations` may be `auto`; the key holds its value in effect instead.
_NO_MEMORY = {*NodeSettings.model_fields, "num_threads", "profile_step", "recompute_activations"} - {
    "num_processes",
    "num_nodes",
    "num_shards",
}


def tune_micro_batches(run: Run, updater: PolicyUpdater, *, longest: int) -> PolicyUpdater:
    """Choose values for the updater's `auto` settings, record them, and return the updater with these values.

    Activations are recomputed if a memory prediction requires it. The number of tokens per micro-batch is
    found by trial. `longest` is the number of tokens of the longest possible row (prompt and completion).
    Raises `MemoryExhaustedError` if one such row does not fit.
    """
    compute = run.config.compute
    if "auto" not in (compute.recompute_activations, compute.micro_batch_tokens):
        return updater
    if compute.recompute_activations == "auto":
        updater = _fitting_blocks(run, updater, longest)
    tokens = compute.micro_batch_tokens
    if tokens == "auto":
        updater = _fitting_micro_batches(run, updater, longest)
        tokens = updater.settings.micro_batch_tokens
    run.with_compute(recompute_activations=updater.forward.recomputes, micro_batch_tokens=tokens)
    return updater


def _fitting_blocks(run: Run, updater: PolicyUpdater, longest: int) -> PolicyUpdater:
    """Return the updater, with activation recomputation turned on if an update needs it to fit into memory.

    Whether an update fits is predicted, not measured.
    """
    config, is_needed = run.config, None
    if run.ranks.is_first and _may_recompute(config, updater):
        is_needed = needs_recomputation(
            config,
            exact_shape(config),
            num_prompt_tokens=longest - config.rollout.max_new_tokens,
            device_bytes=_gpu_bytes(config.compute.device),
        )
    if not run.ranks.from_first(is_needed):
        return updater
    run.log("updates recompute activations: storing them is predicted not to fit into memory")
    return replace(updater, forward=updater.forward.recomputing())


def _gpu_bytes(device: str) -> int | None:
    """Return the memory of the GPU `device` in bytes, or None for the CPU."""
    return None if device == "cpu" else int(torch.cuda.get_device_properties(device).total_memory)


def _may_recompute(config: RunConfig, updater: PolicyUpdater) -> bool:
    """Return whether the settings and the model allow a switch from stored to recomputed activations."""
    is_open = config.compute.recompute_activations == "auto" and not updater.forward.recomputes
    return is_open and bool(decoder_blocks(updater.forward.model))


def _fitting_micro_batches(run: Run, updater: PolicyUpdater, longest: int) -> PolicyUpdater:
    """Return the updater with the largest micro-batches that fit into memory.

    If a single row does not fit, activations are recomputed, provided that the settings allow it. Raises
    `MemoryExhaustedError` if the row still does not fit.
    """
    found = _kept_or_found(run, updater, longest)
    if found is None and _may_recompute(run.config, updater):
        updater = replace(updater, forward=updater.forward.recomputing())
        found = _kept_or_found(run, updater, longest)
        if found is not None:
            run.log(f"updates recompute activations: a row of {longest} tokens does not fit otherwise")
    if found is None:
        again = "" if updater.forward.recomputes else "set compute.recompute_activations=true, "
        raise MemoryExhaustedError(
            f"out of memory while finding compute.micro_batch_tokens, since a single row of {longest} "
            f"tokens does not fit; {again}lower rollout.max_new_tokens, or choose optimizer=adamw_8bit, a "
            "smaller model, or a device with more memory (`atrium memory` with the same settings shows "
            "the memory of each part)"
        )
    return replace(updater, settings=replace(updater.settings, micro_batch_tokens=found))


def _kept_or_found(run: Run, updater: PolicyUpdater, longest: int) -> int | None:
    """Return the number of tokens per micro-batch from the cache, or find it by trial.

    Returns None if a single row does not fit.
    """
    path = run.folder.cache_dir / _CACHE
    key, cache = _key(run.config, updater, longest), _read_cache(path)
    if (found := cache.get(key)) is not None:
        run.log(f"micro-batches of {found} tokens, as found before for this model on this kind of device")
        return found
    if (found := _found(run.config, updater, longest)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**cache, key: found}, indent=1) + "\n")
        run.log(f"micro-batches of {found} tokens, found by trying what fits into memory")
    return found


def _found(config: RunConfig, updater: PolicyUpdater, longest: int) -> int | None:
    rollout = config.rollout
    made_later = {PROXIMAL_STATES} if updater.optimizer.state() else {PROXIMAL_STATES, OPTIMIZER_STATE}
    items = planned_memory(config, exact_shape(config), num_prompt_tokens=longest - rollout.max_new_tokens)
    reserved = sum(item.num_bytes for item in items if item.name in made_later)
    minibatch = -(-rollout.num_prompts * rollout.group_size * longest // config.optimizer.num_minibatches)

    # One limit around all trials: memory kept by the allocator after one must not add to the next.
    with updater.memory_limit():
        return largest_budget(
            lambda tokens: update_fits(updater.forward, tokens, longest=longest, reserved_bytes=reserved),
            longest=longest,
            largest=min(config.compute.max_micro_batch_tokens, minibatch),
        )


def _key(config: RunConfig, updater: PolicyUpdater, longest: int) -> str:
    """Return the cache key: a hash of the model, device and settings that affect the memory of updates."""
    compute = config.compute
    device = compute.device
    memory = torch.cuda.get_device_properties(device) if device == "cuda" else None
    facts: Mapping[str, Any] = {
        "architecture": updater.forward.model.config.to_dict(),  # type: ignore[union-attr, operator]
        "trained": sum(one.numel() for one in updater.forward.model.parameters() if one.requires_grad),
        "device": [device, memory and memory.name, memory and memory.total_memory],
        "compute": compute.model_dump(mode="json", exclude=_NO_MEMORY),
        "recomputes": updater.forward.recomputes,
        # Not the whole section: learning rates, which sweeps vary, change no memory.
        "optimizer": [config.optimizer.kind, config.optimizer.num_minibatches],
        "rollout": config.rollout.model_dump(mode="json"),
        "lora": config.model.lora and config.model.lora.model_dump(mode="json"),
        "parts": [config.divergence.kind, config.algorithm.reference.kind],
        "longest": longest,
        "torch": torch.__version__,
        "tried": "with gradients",  # invalidates values from versions that tried without gradients
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read_cache(path: Path) -> dict[str, int]:
    cache, _ = read_object(path)  # empty if the file is missing or damaged
    return {key: value for key, value in cache.items() if isinstance(value, int)}
