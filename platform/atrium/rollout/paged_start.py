"""Starting and ending transformers' continuous batching: its settings, its cache, its errors in one line."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager

from atrium.errors import EngineError
from atrium.rollout.engine import GenerationRequest, SamplingParams
from atrium.rollout.paged_draw import SeededDraw

# A step holds one token of every completion in flight, or this many tokens of prompts.
_MIN_STEP_TOKENS = 512
# Completions are admitted while this share of the cache is free; the others wait.
_SAFETY_MARGIN = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedSettings:
    """How continuous batching runs.

    `context_length` is the most tokens of a prompt and its completion together. At most `max_num_seqs`
    completions are decoded at once; keys and values take at most `kv_cache_mb` megabytes, in pages of
    `page_size` tokens. `attention` is the attention implementation of transformers. One step may take
    `step_timeout_s` seconds.
    """

    context_length: int
    max_num_seqs: int
    kv_cache_mb: int
    page_size: int
    attention: str
    step_timeout_s: float


def num_blocks(
    model: PreTrainedModel,
    settings: PagedSettings,
    requests: Sequence[GenerationRequest],
    sampling: SamplingParams,
) -> int:
    """Blocks of the cache, each a page of every layer: what all could fill, as far as the settings allow.

    Raises `EngineError` where the longest prompt and its completion do not fit.
    """
    config = model.config.get_text_config()
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token_bytes = 2 * int(config.num_hidden_layers) * num_heads * head_size * model.dtype.itemsize
    num_allowed = int((settings.kv_cache_mb << 20) // (token_bytes * settings.page_size))
    lengths = [len(request.prompt_token_ids) for request in requests] or [0]
    longest = max(lengths) + sampling.max_new_tokens
    num_each = -(-longest // settings.page_size)
    if num_each > num_allowed:
        raise EngineError(
            f"rollout.kv_cache_mb={settings.kv_cache_mb} holds {num_allowed * settings.page_size} tokens, "
            f"and a prompt with its completion may have {longest}; give more, or lower max_new_tokens"
        )
    num_samples = sum(len(request.sample_seeds) for request in requests)
    num_wanted = num_each * min(num_samples, settings.max_num_seqs)
    return min(num_allowed, int(num_wanted / (1 - _SAFETY_MARGIN)) + 1)


def new_manager(
    model: PreTrainedModel, draw: SeededDraw, settings: PagedSettings, *, max_rows: int, num_blocks: int
) -> ContinuousBatchingManager:
    """A manager whose cache is reserved, and that draws tokens as `draw` does; it does not run yet."""
    manager = model.init_continuous_batching(
        GenerationConfig(do_sample=False, eos_token_id=-1),
        ContinuousBatchingConfig(
            page_size=settings.page_size,
            num_blocks=num_blocks,
            max_batch_tokens=max(_MIN_STEP_TOKENS, max_rows),
            max_requests_per_batch=max_rows,
            max_blocks_per_request=0,
            use_async_batching=False,
            use_cuda_graph=False,
            safety_margin=_SAFETY_MARGIN,
            seed=0,
            auto_switch_to_flash=False,
        ),
    )
    manager.logit_processor = draw.processors()
    # The library seeds torch's generators when it reserves the cache; nothing here draws from them.
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        manager.warmup()
    return manager


def stop(manager: ContinuousBatchingManager) -> None:
    """End the manager's thread, whatever it still computes, and free its cache.

    The library collects garbage twice as it ends, which takes longer than a step of a small model, so objects
    are hidden from the collector meanwhile. Its cache is in no cycle and is freed all the same.
    """
    gc.freeze()
    try:
        manager.stop(hard_stop=True)
    finally:
        gc.unfreeze()


def num_steps(manager: ContinuousBatchingManager) -> int:
    """Steps that the manager's thread has computed; -1 before the first."""
    return int(getattr(manager, "current_batch", -1))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the library's errors in the body into an `EngineError`; `what` was waited for."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # whatever a model or a kernel raises
        raise EngineError(explanation(what, f"{type(error).__name__}: {error}")) from error


def explanation(what: str, error: str) -> str:
    """One line on why the library failed, with the settings that help where they are known."""
    message = " ".join(error.split())[:300]
    advice = "go on from the last checkpoint with --resume"
    if "memory" in message.lower():
        advice = "lower rollout.kv_cache_mb or rollout.max_num_seqs"
    return f"transformers failed (waiting for {what}): {message}; {advice}"
