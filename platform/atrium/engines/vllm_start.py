"""Interface to vLLM: start arguments, sampling parameters, and one-line error messages."""

from __future__ import annotations

import copy
import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch._dynamo.config
import torch.distributed
from transformers import PreTrainedModel

from atrium.base.atomic import write_text
from atrium.base.errors import reason_of
from atrium.engines.engine import SamplingParams
from atrium.engines.settings import VllmSettings

_MEGABYTE = 1 << 20
# Seeds are taken modulo this number, which also avoids -1: vLLM interprets -1 as no seed.
_NUM_SEEDS = 1 << 63
_GLOO_EXECUTOR = "atrium.engines.vllm_executor.GlooExecutor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device, the number format and the context length in tokens that vLLM uses.

    `head_dtype` is the number format of the logits; `model` means `dtype`.
    """

    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    context_length: int
    head_dtype: Literal["model", "float32"] = "model"


class Base(NamedTuple):
    """Base weights in `folder`, and the maximum rank of the adapters that vLLM adds to them."""

    folder: Path
    rank: int


def start_vllm(  # vLLM has no types here
    model: PreTrainedModel,
    settings: VllmSettings,
    place: Place,
    cache_dir: Path,
    base: Base | None = None,
) -> Any:  # noqa: ANN401
    """Start vLLM with the architecture of `model`, and return its `LLMEngine`.

    vLLM loads the weights of `base` and applies adapters to them. If `base` is None, it starts with
    placeholder weights and without support for adapters.
    """
    if settings.enforce_eager:
        # The environment sets this too, but torch may have read it already; vLLM compiles at import.
        torch._dynamo.config.disable = True
    # vLLM warns that Triton is missing, as on every machine without a GPU.
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model_folder(model, cache_dir) if base is None else base.folder),
            load_format="dummy" if base is None else "auto",
            enable_lora=base is not None,
            max_lora_rank=16 if base is None else base.rank,
            enable_sleep_mode=settings.sleep_level is not None,
            **engine_arguments(settings, place),
            **batching(settings, place),
            **_sharing(settings, place),
            disable_log_stats=True,
        )
    )
    if settings.tensor_parallel > 1:
        _drop_queue()
    return engine


def engine_arguments(settings: VllmSettings, place: Place) -> dict[str, Any]:
    """Return the arguments that determine what vLLM computes, in this process or in a server, by name."""
    speculative = None
    if settings.num_speculative_tokens is not None:
        speculative = {"method": "ngram", "num_speculative_tokens": settings.num_speculative_tokens}
    return {
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": place.dtype,
        "max_model_len": place.context_length,
        "max_num_seqs": settings.max_num_seqs,
        "gpu_memory_utilization": settings.gpu_memory_fraction,
        "kv_cache_memory_bytes": None if settings.kv_cache_mb is None else settings.kv_cache_mb * _MEGABYTE,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "enforce_eager": settings.enforce_eager,
        "speculative_config": speculative,
        "hf_overrides": {"head_dtype": place.head_dtype},
        "logprobs_mode": "processed_logprobs",
    }


def _drop_queue() -> None:
    """Remove the queue between vLLM's processes, with its shared memory and socket files.

    The queue is not used, because each process schedules its requests by itself. If a process were killed, it
    would leave these files behind.
    """
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    handle, group.mq_broadcaster = group.mq_broadcaster.handle, None
    for address in vars(handle).values():
        if isinstance(address, str) and address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


def model_folder(model: PreTrainedModel, cache_dir: Path) -> Path:
    """Create and return a folder with only the model's configuration, named by a hash of its content.

    The path is part of the key under which vLLM caches compiled code, so models with the same configuration
    share a folder.
    """
    text = model_config(model)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = cache_dir.absolute() / "vllm-models" / name
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.json", text)  # atomic, since ranks write at the same time
    return folder


def model_config(model: PreTrainedModel) -> str:
    """Return the content of `config.json` for a model's architecture."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    text: str = config.to_json_string()
    return text


class Preemptions:
    """A counter of vLLM's preemptions: how often a sample was interrupted, to be recomputed later.

    It wraps vLLM's scheduler, because vLLM counts preemptions only if it records statistics of every token.
    """

    def __init__(self, engine: Any) -> None:  # noqa: ANN401 - vLLM has no types here
        self.num = 0
        scheduler = engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request  # private, in vLLM 0.25 to 0.33

        @functools.wraps(preempt)
        def counted(*args: object, **kwargs: object) -> object:
            self.num += 1
            return preempt(*args, **kwargs)

        scheduler._preempt_request = counted


def described(engine: Any) -> Mapping[str, str | int | float]:  # noqa: ANN401 - as above
    """Return vLLM's properties by name: version, model runner, logits' dtype, and cache and batch limits."""
    from vllm import __version__

    config = engine.vllm_config
    cache = config.cache_config
    num_tokens = cache.num_gpu_blocks * cache.block_size
    return {
        "engine": "vllm",
        "version": __version__,
        "model_runner": "V2" if config.use_v2_model_runner else "V1",
        "head_dtype": str(config.model_config.head_dtype).removeprefix("torch."),
        "cache_tokens": num_tokens,
        "cache_longest_completions": round(num_tokens / config.model_config.max_model_len, 2),
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
    }


def _sharing(settings: VllmSettings, place: Place) -> dict[str, Any]:
    """Return the arguments that make vLLM use the run's process group, or none for a single process.

    All ranks start and end their engines at the same time. vLLM splits an engine over consecutive ranks, each
    of which schedules and samples by itself. If there are several engines, they do not communicate.
    """
    num_ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if num_ranks == 1:
        return {}
    on_cpu = place.device == "cpu" and settings.tensor_parallel > 1
    return {
        "distributed_executor_backend": _GLOO_EXECUTOR if on_cpu else "external_launcher",
        "tensor_parallel_size": settings.tensor_parallel,
    }


def batching(settings: VllmSettings, place: Place) -> dict[str, Any]:
    """Return vLLM's arguments for batching prompts, by name.

    On a CPU, prompts are not split into chunks: vLLM's CPU build cannot reset a seeded random generator after
    a chunk that does not complete the prompt.
    """
    num_tokens = settings.max_num_batched_tokens
    if place.device != "cpu":
        return {"max_num_batched_tokens": num_tokens}
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(num_tokens, place.context_length),
    }


def sampling_fields(sampling: SamplingParams, seed: int, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """Return the fields of vLLM's sampling parameters for one sample, as plain values for Python or JSON."""
    return {
        "max_tokens": sampling.max_new_tokens,
        # Stop tokens have probability 0 until this many tokens are sampled.
        "min_tokens": sampling.max_new_tokens if sampling.ignore_stop else 0,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": seed % _NUM_SEEDS,
        "stop_token_ids": list(stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,
        # vLLM searches for strings in the text, and ends a completion with the token that completes one.
        "stop": [] if sampling.ignore_stop else list(sampling.stop),
        "include_stop_str_in_output": True,
        "detokenize": bool(sampling.stop),
    }


def sampling_parameters(sampling: SamplingParams, seed: int, stop_token_ids: Sequence[int]) -> Any:  # noqa: ANN401 - as above
    """Return vLLM's `SamplingParams` for one sample, with the exact temperature of `sampling`."""
    from vllm import SamplingParams as VllmSamplingParams
    from vllm.sampling_params import RequestOutputKind

    # The constructor raises temperatures to at least 0.01 and refuses those above 2; the sampler takes any.
    allowed = sampling.model_copy(update={"temperature": min(sampling.temperature, 1.0)})
    parameters = VllmSamplingParams(
        **sampling_fields(allowed, seed, stop_token_ids),
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )
    parameters.temperature = sampling.temperature
    return parameters


def explanation(what: str, error: Exception) -> str:
    """Return a one-line message on why vLLM failed while waiting for `what`, with a remedy."""
    message = reason_of(error)
    advice = "resume from the last checkpoint with --resume"
    if "out of memory" in message.lower() or "kv cache" in message.lower():
        advice = "lower rollout.gpu_memory_fraction, rollout.max_num_seqs or rollout.context_length"
    return f"vLLM failed (waiting for {what}): {type(error).__name__}: {message}; {advice}"
