"""From configuration to the engine of transformers' continuous batching."""

from __future__ import annotations

import torch

from atrium.config.rollouts import PagedRolloutConfig
from atrium.config.schema import RunConfig
from atrium.errors import EngineError, MissingDependencyError
from atrium.models.lora import plain_copy
from atrium.models.policy import Policy
from atrium.rollout.engine import Engine


def build_paged_engine(config: RunConfig, rollout: PagedRolloutConfig, policy: Policy) -> Engine:
    """The engine, with a copy of the policy's weights in the precision that the run computes in."""
    try:
        from atrium.rollout.paged_engine import PagedEngine
        from atrium.rollout.paged_start import PagedSettings
    except ImportError as error:
        raise MissingDependencyError(
            "rollout=transformers_paged needs continuous batching as transformers 5.19 has it; install that "
            f"or a later one, or choose rollout=transformers ({error})"
        ) from error
    length = policy.context_length if rollout.context_length is None else rollout.context_length
    if length > policy.context_length:
        raise EngineError(
            f"rollout.context_length={length} is more than the model allows; allowed is at most "
            f"{policy.context_length}, or null for all of it"
        )
    model = plain_copy(policy.model)
    if config.compute.dtype == "bfloat16":
        # Buffers, such as the frequencies of rotations, stay as they are.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return PagedEngine(
        model=model.to(config.compute.device),
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        settings=PagedSettings(
            context_length=length,
            max_num_seqs=rollout.max_num_seqs,
            kv_cache_mb=rollout.kv_cache_mb,
            page_size=rollout.page_size,
            attention=rollout.attention,
            step_timeout_s=rollout.step_timeout_s,
        ),
    )
