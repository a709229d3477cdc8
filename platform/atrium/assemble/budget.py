"""The tokens of a micro-batch where they are `auto` and follow from the device's memory: found, and kept.

What was found becomes a value in the run's config.json, which a continued run reuses, and is kept in the
cache of the runs folder for other runs of the same shape on the same kind of device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atrium.assemble.memory import planned_memory
from atrium.config.schema import RunConfig
from atrium.errors import MemoryExhaustedError
from atrium.tracking.atomic import write_text
from atrium.tracking.run_folder import RunFolder
from atrium.train.budget_search import largest_budget, update_fits
from atrium.train.memory_plan import BEHAVIOR_STATES, OPTIMIZER_STATE
from atrium.train.step import PolicyUpdater

_CACHE = "micro_batch_tokens.json"


def settled_budget(
    config: RunConfig,
    updater: PolicyUpdater,
    folder: RunFolder,
    *,
    longest: int,
    on_message: Callable[[str], None],
) -> PolicyUpdater:
    """The updater with the size of micro-batches that the run has from here on, which its record then holds.

    `longest` is the length of the longest prompt with the longest completion, in tokens. Raises
    `MemoryExhaustedError` where one such row does not fit.
    """
    if config.compute.micro_batch_tokens != "auto":
        return updater
    path = folder.cache_dir / _CACHE
    key, cache = _key(config, updater, longest), _read_cache(path)
    if (found := cache.get(key)) is not None:
        on_message(f"micro-batches of {found} tokens, as found before for this model on this kind of device")
    else:
        found = _found(config, updater, longest)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**cache, key: found}, indent=1) + "\n")
        on_message(f"micro-batches of {found} tokens, by trying what fits into memory")
    compute = config.compute.model_copy(update={"micro_batch_tokens": found})
    stored = config.model_copy(update={"compute": compute})
    folder.write_config({**stored.model_dump(mode="json"), "resume": None})
    return replace(updater, settings=replace(updater.settings, micro_batch_tokens=found))


def _found(config: RunConfig, updater: PolicyUpdater, longest: int) -> int:
    rollout = config.rollout
    made_later = {BEHAVIOR_STATES} if updater.optimizer.state() else {BEHAVIOR_STATES, OPTIMIZER_STATE}
    items = planned_memory(config, num_prompt_tokens=longest - rollout.max_new_tokens)
    reserved = sum(item.num_bytes for item in items if item.name in made_later)
    minibatch = -(-rollout.num_prompts * rollout.group_size * longest // config.optimizer.num_minibatches)

    # One limit around all tries: what the allocator keeps from one must not come on top for the next.
    with updater.memory_limit:
        found = largest_budget(
            lambda tokens: update_fits(updater.forward, tokens, longest=longest, reserved_bytes=reserved),
            longest=longest,
            largest=min(config.compute.max_micro_batch_tokens, minibatch),
        )
    if found is None:
        raise MemoryExhaustedError(
            f"out of memory in finding compute.micro_batch_tokens: a single row of {longest} tokens does not "
            "fit; lower rollout.max_new_tokens, choose optimizer=adamw_8bit, a smaller model, or a device "
            "with more memory (`atrium memory` with the same settings says what takes how much)"
        )
    return found


def _key(config: RunConfig, updater: PolicyUpdater, longest: int) -> str:
    """A hash of everything that memory follows from."""
    compute = config.compute
    device = compute.device
    memory = torch.cuda.get_device_properties(device) if device == "cuda" else None
    takes_memory = config.rollout.engine in ("vllm", "transformers_paged")
    facts: Mapping[str, Any] = {
        "architecture": updater.forward.model.config.to_dict(),  # type: ignore[union-attr, operator]
        "trained": sum(one.numel() for one in updater.forward.model.parameters() if one.requires_grad),
        "device": [device, memory and memory.name, memory and memory.total_memory],
        "compute": [compute.dtype, compute.packing, compute.memory_limit_mb],
        "optimizer": [config.optimizer.kind, config.optimizer.num_minibatches],
        "rollout": [config.rollout.engine, config.rollout.num_prompts, config.rollout.group_size],
        "engine": config.rollout.model_dump(mode="json") if takes_memory else None,
        "parts": [config.divergence.kind, config.algorithm.reference.kind],
        "longest": longest,
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read_cache(path: Path) -> dict[str, int]:
    try:
        cache = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or one that is found anew
        return {}
    return {key: value for key, value in cache.items() if isinstance(value, int)}
