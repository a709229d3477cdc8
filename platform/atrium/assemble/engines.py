"""Functions that build engines from their settings, and check that engine and model fit into memory."""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path

import psutil
import torch

from atrium.assemble.disk import check_disk
from atrium.assemble.memory import check_memory
from atrium.assemble.shapes import exact_shape
from atrium.config.schema import RunConfig
from atrium.engines.engine import Engine
from atrium.engines.settings import DecoderSettings, EngineSettings, VllmSettings
from atrium.engines.transformers_engine import TransformersEngine
from atrium.engines.vllm_engine import VllmEngine
from atrium.engines.vllm_start import Place
from atrium.models.lora import has_lora, plain_copy
from atrium.models.policy import Policy
from atrium.models.settings import HubModelSettings
from atrium.models.skeletons import on_device

# Measured: at most 6e-6 between float32 engines, 0.014 on average in bfloat16.
_EXACT_MISMATCH, _ROUNDED_MISMATCH = 1e-3, 0.1


@singledispatch
def build_engine(
    settings: EngineSettings, config: RunConfig, policy: Policy, *, shares_model: bool = True
) -> Engine:
    """Build the engine for `settings` (`config.rollout`), with the policy's weights.

    With `shares_model`, the engine samples from the policy's own module if it can, and otherwise from a copy.
    In a run on stored completions, the engine samples only the completions that are not stored. To add an
    engine, register a function for the class of its settings.
    """
    raise NotImplementedError(f"no engine is registered for the settings {type(settings).__name__}")


@build_engine.register
def _decoder(
    settings: DecoderSettings, config: RunConfig, policy: Policy, *, shares_model: bool = True
) -> Engine:
    # Unmerged adapters cost extra matrix products at every token, so the engine uses a merged copy.
    model = policy.model
    if has_lora(model) or not shares_model:
        model = on_device(plain_copy(model), config.compute.device)
    return TransformersEngine(
        model=model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        pad_token_id=policy.pad_token_id,
        context_length=policy.context_length,
        max_batch_tokens=settings.max_batch_tokens,
        unit_samples=settings.unit_samples,
    )


@build_engine.register
def _vllm(settings: VllmSettings, config: RunConfig, policy: Policy, *, shares_model: bool = True) -> Engine:
    return VllmEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        settings=settings,
        place=vllm_place(config, settings.longest(policy.context_length)),
        cache_dir=Path(config.runs_dir) / ".cache",
    )


def vllm_place(config: RunConfig, context_length: int) -> Place:
    """Return the device, number formats and context length that vLLM uses, in this process or in a server."""
    compute = config.compute
    return Place(
        device=compute.device,
        dtype=compute.dtype,
        head_dtype=compute.head_dtype,
        context_length=context_length,
    )


def mismatch_bound(config: RunConfig) -> float | None:
    """Return the limit on the mean difference between engine and trainer log-probabilities, in nats.

    A larger difference ends the run. None means no limit.
    """
    bound = config.rollout.max_mismatch
    if bound != "auto":
        return bound
    if config.rollout.reads_stored:
        return None
    return _EXACT_MISMATCH if config.compute.dtype == "float32" else _ROUNDED_MISMATCH


def check_model(config: RunConfig, *, trains: bool = True) -> None:
    """Raise `ConfigError` if the engine cannot compute the model, or if the model does not fit into memory.

    With `trains`, raises `RunFolderError` if the disk is too small for the run's checkpoints. Only the
    model's config.json is read. The tiny model is not checked.
    """
    if isinstance(config.model, HubModelSettings):
        shape = exact_shape(config)
        # Total memory, since memory that is in use now may be free later, and a run that fails cannot fit.
        is_cuda = config.compute.device == "cuda"
        num_bytes = torch.cuda.mem_get_info()[1] if is_cuda else psutil.virtual_memory().total
        check_memory(config, shape, int(num_bytes), trains=trains)
        if trains:
            check_disk(config, shape)
