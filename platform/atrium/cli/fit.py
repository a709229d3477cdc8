"""Whether a language model's training can fit this machine's memory at all, before anything is loaded.

The least that a step needs, by the plan of `atrium memory`: the trained state, what the engine takes, and
an update on one short row with activations computed again. What passes may still not fit; what is
refused cannot.
"""

from __future__ import annotations

import re

import psutil

from atrium.config.models import HubModelConfig
from atrium.config.rollouts import VllmRolloutConfig
from atrium.config.scale import count_parameters, known_architecture
from atrium.config.schema import RunConfig
from atrium.errors import ConfigError
from atrium.tracking import provenance
from atrium.train.memory_plan import MemoryItem, MemorySettings, ModelDimensions, peak_by_phase, plan_memory

_ROW_TOKENS = 64
_GB = 1e9


def device_bytes(config: RunConfig) -> int | None:
    """The memory that one process may use: its GPU's, or its share of the machine's. None where not known."""
    compute = config.compute
    if compute.slurm is not None:
        return None  # another machine runs it
    if compute.device == "cpu":
        limit_mb = provenance.memory_limit_mb()
        total = int(psutil.virtual_memory().total)
        return min(total, total if limit_mb is None else limit_mb << 20) // compute.num_processes
    sizes = [int(size[0]) << 20 for gpu in provenance.gpus() if (size := re.match(r"\d+", gpu["memory"]))]
    return min(sizes, default=None)


def check_fit(config: RunConfig, num_bytes: int | None) -> None:
    """Raise `ConfigError` where a step of `config` cannot be done in the `num_bytes` that a process has."""
    model = config.model
    if num_bytes is None or not isinstance(model, HubModelConfig):
        return
    dimensions = _dimensions(model)
    if dimensions is None:
        return  # found when its config.json is there
    items = plan_memory(dimensions, _least(config, dimensions, num_bytes))
    peaks = peak_by_phase(items)
    phase = max(peaks, key=lambda each: peaks[each])
    if peaks[phase] <= num_bytes:
        return
    held = sorted((item for item in items if phase in item.phases), key=lambda item: -item.num_bytes)
    memory = "main memory" if config.compute.device == "cpu" else "GPU memory"
    raise ConfigError(
        f"model.source={model.source}: training takes at least {_gb(peaks[phase])} of {memory} in a process ("
        + ", ".join(f"{item.name} {_gb(item.num_bytes)}" for item in held[:3])
        + f"), and there are {_gb(num_bytes)}; {_advice(config, held)}"
    )


def _advice(config: RunConfig, held: list[MemoryItem]) -> str:
    """What takes less: the settings that lower the largest items, as far as they apply."""
    adapters = [] if config.model.lora else ["model.lora"]
    if config.compute.device == "cpu":
        return f"what takes less: {', '.join([*adapters, 'a GPU'])}, or a smaller model"
    settings = dict.fromkeys(name for item in held[:3] for name in item.lowered_by.split(", "))
    lowered = [name for name in settings if name.startswith(("rollout.", "optimizer=", "compute.offload"))]
    less = ", ".join([*lowered, *adapters, "compute=node on more GPUs"])
    return f"what takes less: {less}, or a smaller model"


def _dimensions(model: HubModelConfig) -> ModelDimensions | None:
    known = known_architecture(model)
    num_parameters = count_parameters(known)
    if known is None or num_parameters is None:
        return None

    def size(key: str, otherwise: int = 0) -> int:
        value = known.get(key)
        return value if isinstance(value, int) else otherwise

    heads = size("num_attention_heads")
    return ModelDimensions(
        model_type=str(known.get("model_type")),
        num_parameters=num_parameters,
        num_tensors=0,
        num_layers=size("num_hidden_layers"),
        hidden_size=size("hidden_size"),
        feed_forward_size=size("intermediate_size"),
        num_heads=heads,
        num_key_value_heads=size("num_key_value_heads", heads),
        head_size=size("head_dim", size("hidden_size") // heads),
        vocabulary_size=size("vocab_size"),
    )


def _least(config: RunConfig, model: ModelDimensions, num_bytes: int) -> MemorySettings:
    rollout, compute = config.rollout, config.compute
    has_lora, reference = config.model.lora is not None, config.algorithm.reference.kind
    return MemorySettings(
        compute_dtype=compute.dtype,
        micro_batch_tokens=_ROW_TOKENS,
        batch_tokens=_ROW_TOKENS,
        cache_tokens=_ROW_TOKENS,
        has_reference=reference != "none" and not (reference == "frozen" and has_lora),
        engine_bytes=_engine_bytes(config, model, num_bytes),
        engine_sleeps=isinstance(rollout, VllmRolloutConfig) and rollout.sleep_level is not None,
        optimizer=config.optimizer.kind,
        num_ranks=compute.world_size,
        offload=compute.offload,
        num_adapter_parameters=int(has_lora),  # too few to count
        num_adapter_tensors=int(has_lora),
        recomputes=True,
    )


def _engine_bytes(config: RunConfig, model: ModelDimensions, num_bytes: int) -> int:
    """What an engine with memory of its own takes: what it is given, or else its weights."""
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig):
        return 0
    if rollout.kv_cache_mb is None and isinstance(rollout, VllmRolloutConfig):
        return int(rollout.gpu_memory_fraction * num_bytes)
    weights = (2 if config.compute.dtype == "bfloat16" else 4) * model.num_parameters
    return weights // rollout.ranks_per_engine + ((rollout.kv_cache_mb or 0) << 20)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / _GB:.1f} GB"
