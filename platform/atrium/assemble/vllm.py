"""From configuration to the vLLM engine, and what it needs of a device, before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from atrium.assemble.memory import configured_architecture
from atrium.config.models import HubModelConfig
from atrium.config.rollouts import VllmRolloutConfig
from atrium.config.schema import RunConfig
from atrium.errors import EngineError
from atrium.models.architecture import hub_architecture, random_architecture
from atrium.models.policy import Policy
from atrium.rollout.engine import Engine
from atrium.rollout.vllm_engine import VllmEngine
from atrium.rollout.vllm_memory import MemoryPlan, ModelShape, check_memory
from atrium.rollout.vllm_split import SplitShape, check_split
from atrium.rollout.vllm_start import VllmSettings


def build_vllm_engine(config: RunConfig, rollout: VllmRolloutConfig, policy: Policy) -> Engine:
    """The engine, started and with the policy's weights."""
    return VllmEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        settings=VllmSettings(
            device=config.compute.device,
            dtype=config.compute.dtype,
            context_length=_context_length(rollout, policy.context_length),
            max_num_seqs=rollout.max_num_seqs,
            gpu_memory_fraction=rollout.gpu_memory_fraction,
            kv_cache_mb=rollout.kv_cache_mb,
            kv_cache_dtype=rollout.kv_cache_dtype,
            enforce_eager=rollout.enforce_eager,
            sleep_level=rollout.sleep_level,
            num_speculative_tokens=rollout.num_speculative_tokens,
            start_timeout_s=rollout.start_timeout_s,
            step_timeout_s=rollout.step_timeout_s,
            tensor_parallel=rollout.tensor_parallel,
        ),
        cache_dir=Path(config.runs_dir) / ".cache",
    )


def check_vllm_split(config: RunConfig) -> None:
    """Raise `ConfigError` where vLLM cannot split the model as asked; reads its config.json at most."""
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig) or rollout.tensor_parallel == 1:
        return
    architecture = configured_architecture(config)
    shape = SplitShape(**{name: getattr(architecture, name) for name in SplitShape.__dataclass_fields__})
    check_split(shape, rollout.tensor_parallel)


def check_vllm_memory(
    config: RunConfig, model: HubModelConfig, *, trains: bool = True, device_bytes: int | None = None
) -> None:
    """Raise `EngineError` where model, cache and trainer cannot fit; reads the model's config.json only.

    `device_bytes` is what there is; by default the GPU's memory, or what is free of the machine's.
    """
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig):
        return
    architecture = (
        random_architecture(model.architecture or {})
        if model.weights == "random"
        else hub_architecture(model.source, model.revision)
    )
    check_memory(
        ModelShape(
            num_parameters=architecture.num_parameters,
            num_layers=architecture.num_layers,
            num_key_value_heads=architecture.num_key_value_heads,
            head_size=architecture.head_size,
        ),
        MemoryPlan(
            dtype=config.compute.dtype,
            cache_dtype=config.compute.dtype if rollout.kv_cache_dtype == "auto" else rollout.kv_cache_dtype,
            context_length=_context_length(rollout, architecture.context_length),
            engine_frac=rollout.gpu_memory_fraction,
            cache_bytes=None if rollout.kv_cache_mb is None else rollout.kv_cache_mb << 20,
            sleeps=rollout.sleep_level is not None,
            trains=trains and model.lora is None,  # adapters' gradients are too small to count
            tensor_parallel=rollout.tensor_parallel,
            num_ranks=_num_ranks(config),
            offloads=config.compute.offload,
        ),
        device_bytes=_device_bytes(config.compute.device) if device_bytes is None else device_bytes,
    )


def _context_length(rollout: VllmRolloutConfig, longest: int) -> int:
    """The length that is asked for, which the model has to allow."""
    if rollout.context_length is None:
        return longest
    if rollout.context_length > longest:
        raise EngineError(
            f"rollout.context_length={rollout.context_length} is more than the model allows; "
            f"allowed is at most {longest}, or null for all of it"
        )
    return rollout.context_length


def _num_ranks(config: RunConfig) -> int:
    """The processes of the run: those that joined, or are to be started."""
    joined = torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if joined else config.compute.world_size


def _device_bytes(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    return int(psutil.virtual_memory().available)
