"""The built-in engines' settings, which also describe each engine's capabilities.

`assemble/engines.py` starts the engine that belongs to a settings class. This module does not import torch.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from atrium.base.errors import ConfigError
from atrium.base.records import Concurrency, MemoryItem, Phase
from atrium.base.section import Count, Parallel, Text, Wait
from atrium.engines.declaration import ALONE, NUMBER_BYTES, EngineDemand, EngineSettings, EngineUse, WaveSize
from atrium.engines.vllm_environment import (
    BUILDS,
    CPU_HEAD_SIZES,
    check_fp8_cache,
    check_serving,
    check_speculation,
    check_vllm,
    set_environment,
)
from atrium.models.shape import ModelShape

__all__ = ["BankSettings", "DecoderSettings", "EngineSettings", "TransformersSettings", "VllmSettings"]

_MEGABYTE, _GB = 1 << 20, 1e9
_ALONE_FRACTION = 0.9
_MAX_SERVER_TEMPERATURE = 2.0
_SMALL_MODEL_PARAMETERS = 10_000_000
_SAMPLES_OF_LARGE_MODELS = 64


class DecoderSettings(EngineSettings):
    """Settings shared by the engines that decode with transformers."""

    max_batch_tokens: Count | None
    """Maximum number of prompt and completion tokens in a batch, including padding; null for no limit."""
    unit_samples: Count = 256
    """Maximum number of completions sampled together, in whole groups; affects the last bits of results."""

    def check(self, use: EngineUse) -> None:
        """Raise the base class's errors, and `ConfigError` if no batch holds a completion and its prompt."""
        super().check(use)
        if self.max_batch_tokens is not None and self.max_batch_tokens <= self.max_new_tokens:
            raise ConfigError(
                f"rollout.max_batch_tokens must be greater than rollout.max_new_tokens={self.max_new_tokens} "
                f"to hold a prompt and its completion, got {self.max_batch_tokens}; raise it"
            )

    def memory(self, shape: ModelShape, demand: EngineDemand) -> tuple[MemoryItem, ...]:
        """Return the memory of the engine's copy of the weights, if it needs one, and of its caches."""
        copied = demand.weight_bytes * shape.num_parameters if demand.is_apart else 0
        token_bytes = NUMBER_BYTES["float32"] * shape.cache_numbers_per_token()  # in float32
        wave = self.wave_size(shape.num_parameters)
        evaluated = min(wave.num_samples * demand.evaluation_tokens, wave.num_tokens)
        num_samples = self.num_prompts * self.group_size
        at_once = min(1.0, max(self.unit_samples, self.group_size) * demand.num_ranks / num_samples)
        rollouts = self._tokens_at_once(math.ceil(at_once * demand.rollout_tokens / demand.num_ranks))
        return (
            MemoryItem("engine's copy of the weights", copied, tuple(Phase), "rollout=vllm"),
            MemoryItem(
                "key-value cache",
                token_bytes * rollouts,
                (Phase.SAMPLING,),
                "rollout.max_batch_tokens",
            ),
            MemoryItem(
                "key-value cache of answers",
                token_bytes * self._tokens_at_once(max(evaluated, demand.evaluation_tokens)),
                (Phase.EVALUATION,),
                "rollout.max_batch_tokens",
            ),
        )

    def wave_size(self, num_parameters: int) -> WaveSize:
        """Return the limits on a wave of an evaluation, which allow fewer samples for larger models."""
        is_small = num_parameters <= _SMALL_MODEL_PARAMETERS
        return WaveSize() if is_small else WaveSize(num_samples=_SAMPLES_OF_LARGE_MODELS)

    def _tokens_at_once(self, num_tokens: int) -> int:
        return num_tokens if self.max_batch_tokens is None else min(num_tokens, self.max_batch_tokens)


class TransformersSettings(DecoderSettings):
    """Settings of rollouts sampled by the transformers engine."""

    engine: Literal["transformers"]
    """The engine that samples completions."""


class VllmSettings(EngineSettings):
    """Settings of rollouts sampled by vLLM."""

    has_own_weights: ClassVar[bool] = True
    runs_as_server: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = BUILDS

    engine: Literal["vllm"]
    """The engine that samples completions."""
    context_length: Count | None
    """Maximum number of tokens of a prompt and its completion together; null for the model's own maximum."""
    max_num_seqs: Count
    """Maximum number of completions that are decoded at once; others wait."""
    gpu_memory_fraction: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Share of the GPU's memory for vLLM's weights and cache; not used if kv_cache_mb is given."""
    kv_cache_mb: Count | None
    """Size of the key-value cache in megabytes; null for the part of gpu_memory_fraction without weights."""
    kv_cache_dtype: Literal["auto", "fp8"]
    """Number format of cached keys and values; auto for compute.dtype."""
    enforce_eager: bool
    """Whether to skip CUDA graphs and compilation: vLLM starts sooner and decodes more slowly on a GPU."""
    sleep_level: Literal[1, 2] | None
    """How vLLM frees memory during updates: 1 moves weights to the host, 2 drops them; null keeps them."""
    max_num_batched_tokens: Count = 8192
    """Maximum number of tokens that vLLM computes in one step, including the prefill of prompts."""
    num_speculative_tokens: Count | None
    """Number of tokens that vLLM drafts from repetitions in the text and verifies at once; null for no
    speculative decoding."""
    adapters: Literal["merged", "separate"] = "merged"
    """What vLLM receives after each update: merged weights, or separate adapters that it applies itself."""
    start_timeout_s: Wait
    """Timeout in seconds for the start of vLLM, including compilation."""
    step_timeout_s: Wait
    """Timeout in seconds for one decoding step or one update of the weights."""
    tensor_parallel: Parallel = 1
    """Number of processes over which one vLLM splits weights and cache. With `placement=inside`, these are
    consecutive processes of the run on one machine; a server starts its own processes."""

    @property
    def processes_per_engine(self) -> int:
        """The number of processes that share one engine. On GPUs, each process uses its own GPU."""
        return self.tensor_parallel

    @property
    def sleeps(self) -> bool:
        """Whether the engine frees its memory during updates."""
        return self.sleep_level is not None

    @property
    def allows_expandable_segments(self) -> bool:
        """Whether torch's expandable segments can be used: only with one process and no sleep mode."""
        return not self.sleeps and self.tensor_parallel == 1

    def check(self, use: EngineUse) -> None:
        """Raise the errors of the base class, and `ConfigError` for settings that vLLM does not support."""
        if self.overlaps and self.sleeps:
            raise ConfigError(
                f"rollout.sleep_level={self.sleep_level} cannot be used with "
                f"rollout.placement={self.placement} and rollout.lag={self.lag}, since vLLM samples "
                "during updates; use null, or rollout.placement=inside"
            )
        if self.placement == "server":
            self._check_server(use)
        super().check(use)
        devices = self.devices or ()
        for first in range(0, len(devices), self.tensor_parallel):
            of_engine = devices[first : first + self.tensor_parallel]
            if len(set(of_engine)) < len(of_engine):
                raise ConfigError(
                    f"rollout.devices={list(devices)} gives one engine the GPUs "
                    f"{', '.join(map(str, of_engine))}, but its "
                    f"rollout.tensor_parallel={self.tensor_parallel} processes need different GPUs; "
                    "change rollout.devices"
                )
        if self.enforce_eager and use.compiles:
            raise ConfigError(
                "rollout.enforce_eager=true cannot be combined with compute.compile=true, since it "
                "disables compilation by torch; use rollout.enforce_eager=false, or compute.compile=false"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "rollout.max_num_batched_tokens must be at least "
                f"rollout.max_num_seqs={self.max_num_seqs}, one token per completion, got "
                f"{self.max_num_batched_tokens}; raise it"
            )
        if self.num_speculative_tokens is not None and use.evaluation_top_p < 1.0:
            raise ConfigError(
                f"rollout.num_speculative_tokens={self.num_speculative_tokens} requires "
                "evaluation.top_p=1, since vLLM otherwise reports wrong log-probabilities, got "
                f"{use.evaluation_top_p:g}; use null, or evaluation.top_p=1"
            )
        if self.context_length is not None and self.context_length <= self.max_new_tokens:
            raise ConfigError(
                "rollout.context_length must be greater than "
                f"rollout.max_new_tokens={self.max_new_tokens}, got {self.context_length}; raise it"
            )

    def _check_server(self, use: EngineUse) -> None:
        """Raise `ConfigError` if vLLM's server does not support the run."""
        found = {"rollout": self.temperature, "evaluation": use.evaluation_temperature}
        for section, value in found.items():
            if value > _MAX_SERVER_TEMPERATURE:
                raise ConfigError(
                    f"{section}.temperature must be at most {_MAX_SERVER_TEMPERATURE:g} with "
                    f"rollout.placement=server, got {value:g}; lower it"
                )
        if use.has_stop_strings:
            raise ConfigError(
                "model.prompt.stop cannot be used with rollout.placement=server, since servers have no "
                "tokenizer for stop strings; remove it, or choose rollout.placement=inside"
            )
        if len({url.lower() for url in self.servers}) < len(self.servers):
            raise ConfigError("rollout.servers must not name a server twice; remove the duplicate")
        if self.continuous and not self.lag:
            raise ConfigError(
                "rollout.continuous=true requires rollout.lag of at least 1, since rollout.lag=0 would "
                "discard everything that is sampled during an update; choose rollout.lag=1 or more"
            )
        if self.continuous and use.behavior_logprobs == "recompute":
            raise ConfigError(
                "compute.behavior_logprobs=recompute cannot be used with rollout.continuous=true, since "
                "the weights change within a completion; choose compute.behavior_logprobs=auto"
            )
        if self.sleeps:
            raise ConfigError(
                f"rollout.sleep_level={self.sleep_level} has no effect with rollout.placement=server, "
                "since servers have their own devices; choose rollout.sleep_level=null"
            )

    def check_machine(self, device: str) -> None:
        """Raise `MissingDependencyError` for unusable packages, `ConfigError` for GPU settings on a CPU."""
        super().check_machine(device)
        if not self.servers or self.sends_weights:
            check_vllm(device)
            if self.placement == "server":
                check_serving()
        if self.num_speculative_tokens is not None:
            check_speculation()
        if device != "cpu":
            return
        if self.kv_cache_mb is None:
            raise ConfigError(
                "rollout.kv_cache_mb must be a size in megabytes with compute.device=cpu, got null, "
                "which means a share of a GPU's memory; set it, or choose rollout=vllm_cpu"
            )
        if self.sleeps:
            raise ConfigError(f"rollout.sleep_level={self.sleep_level} requires a GPU; use null on a CPU")

    def check_model(self, shape: ModelShape, device: str) -> None:
        """Raise `ConfigError` if vLLM cannot split the model over its processes, or has no kernel for it."""
        if (obstacle := shape.splitting_obstacle(self.tensor_parallel)) is not None:
            possible = [n for n in range(1, shape.num_heads + 1) if shape.splitting_obstacle(n) is None]
            raise ConfigError(
                f"rollout.tensor_parallel={self.tensor_parallel} cannot split the model's {obstacle}; "
                f"use {', '.join(map(str, possible))}"
            )
        if device == "cpu" and self.kv_cache_dtype == "fp8":
            check_fp8_cache(shape.head_size)
        if device == "cpu" and shape.head_size not in CPU_HEAD_SIZES:
            raise ConfigError(
                f"model.head_dim must be one of {', '.join(str(size) for size in CPU_HEAD_SIZES)} for vLLM "
                f"on a CPU, got {shape.head_size}; choose another model, or rollout=transformers"
            )

    def check_cache(self, shape: ModelShape, dtype: str, device_bytes: int | None) -> None:
        """Raise `ConfigError` if the cache is too small for the longest prompt and completion."""
        if not shape.context_length:
            return
        length = self.longest(shape.context_length)
        longest = self._token_bytes(shape, dtype) * length
        if self.kv_cache_mb is not None:
            if self.kv_cache_mb * _MEGABYTE < longest:
                raise ConfigError(
                    f"rollout.kv_cache_mb must be at least {-(-longest // _MEGABYTE)} to hold {length} "
                    f"tokens, got {self.kv_cache_mb}; raise it, or lower rollout.context_length"
                )
        elif device_bytes is not None:
            weights, budget = self._weights_bytes(shape, dtype), self.gpu_memory_fraction * device_bytes
            if weights + longest > budget:
                percent = (weights + longest) * 100 // device_bytes + 1
                advice = f"raise it to {percent / 100:.2f}" if percent < 100 else "choose a smaller model"
                advice += ", or lower rollout.context_length" if weights < budget else ""
                raise ConfigError(
                    f"rollout.gpu_memory_fraction={self.gpu_memory_fraction:g} gives vLLM "
                    f"{budget / _GB:.1f} GB, but the weights in {dtype} need {weights / _GB:.1f} GB and "
                    f"one completion of {length} tokens {longest / _GB:.1f} GB; {advice}"
                )

    def longest(self, allowed: int) -> int:
        """Return the maximum number of tokens of a prompt and its completion together.

        `allowed` is the model's limit. Raises `ConfigError` if `context_length` is above it.
        """
        if self.context_length is not None and self.context_length > allowed:
            raise ConfigError(
                f"rollout.context_length must be at most {allowed} (the model's maximum), got "
                f"{self.context_length}; lower it"
            )
        return self.context_length or allowed

    def memory(self, shape: ModelShape, demand: EngineDemand) -> tuple[MemoryItem, ...]:
        """Return the memory of weights and cache. With `sleep_level`, both are freed during updates."""
        phases = (Phase.START, Phase.SAMPLING, Phase.EVALUATION) if self.sleeps else tuple(Phase)
        # Sharded weights are loaded right after an update, so vLLM's copy is also in memory while saving.
        of_weights = (*phases, Phase.SAVING) if self.sleeps and demand.num_ranks > 1 else phases
        weights = self._weights_bytes(shape, demand.dtype)
        if (cache := self._cache_bytes(shape, demand.dtype, demand.device_bytes)) is None:
            cache = self._token_bytes(shape, demand.dtype) * self.longest(shape.context_length)
            lowered_by = "rollout.context_length"
        else:
            lowered_by = f"rollout.{'gpu_memory_fraction' if self.kv_cache_mb is None else 'kv_cache_mb'}"
        if not self.sleeps:
            lowered_by += ", rollout.sleep_level"
        return (
            MemoryItem("engine's weights", weights, of_weights, "rollout.tensor_parallel"),
            MemoryItem("engine's cache", cache, phases, lowered_by),
        )

    def concurrency(self, shape: ModelShape, dtype: str, device_bytes: int) -> Concurrency:
        """Return how many completions `max_num_seqs` and the cache allow at once."""
        token_bytes = self._token_bytes(shape, dtype)
        return Concurrency(
            num_rows=self.max_num_seqs,
            cache_tokens=(self._cache_bytes(shape, dtype, device_bytes) or 0) // token_bytes,
            token_bytes=token_bytes,
            num_devices=self.tensor_parallel,
        )

    def _cache_bytes(self, shape: ModelShape, dtype: str, device_bytes: int | None) -> int | None:
        """Return the bytes of the cache on one device, or None if that depends on unknown device memory."""
        if self.kv_cache_mb is not None:
            return self.kv_cache_mb * _MEGABYTE
        if device_bytes is None:
            return None
        return max(0, int(self.gpu_memory_fraction * device_bytes) - self._weights_bytes(shape, dtype))

    def _weights_bytes(self, shape: ModelShape, dtype: str) -> int:
        return NUMBER_BYTES[dtype] * shape.num_parameters // self.tensor_parallel

    def _token_bytes(self, shape: ModelShape, dtype: str) -> int:
        """Return the bytes per cached token on each of the processes that share the cache."""
        cached = dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return NUMBER_BYTES[cached] * shape.cache_numbers_per_token(self.tensor_parallel)

    def prepare_environment(self, device: str, cache_dir: Path) -> None:
        """Set the environment variables of vLLM, torch and Triton. Variables set by the user are kept."""
        super().prepare_environment(device, cache_dir)
        set_environment(device, enforce_eager=self.enforce_eager, cache_dir=cache_dir)

    def for_evaluation(self) -> Self:
        """Return the settings for an evaluation in one process, in which vLLM has the GPU to itself."""
        alone = ALONE | {"tensor_parallel": 1, "sleep_level": None, "gpu_memory_fraction": _ALONE_FRACTION}
        return self.model_copy(update=alone | {"adapters": "merged"})


class BankSettings(DecoderSettings):
    """Settings of rollouts of which all or some are read from disk; the policy samples the rest."""

    reads_stored: ClassVar[bool] = True

    engine: Literal["bank"]
    """The engine that samples completions."""
    source: Text
    """Source of stored completions: a run that recorded rollouts, a folder of Parquet files, or one file."""
    stored_frac: Annotated[float, Field(gt=0.0, le=1.0)]
    """Share of each group that is read from the source; the policy samples the rest."""
    rewards: Literal["regrade", "stored"]
    """Reward of stored completions: `regrade` grades them again, `stored` keeps their stored reward."""

    @property
    def num_stored(self) -> int:
        """The number of stored completions per group."""
        return round(self.stored_frac * self.group_size)

    def check(self, use: EngineUse) -> None:
        """Raise the errors of the base class, and `ConfigError` for conflicts with stored rollouts."""
        super().check(use)
        if self.lag:
            raise ConfigError(f"rollout.lag must be 0 for completions read from disk, got {self.lag}")
        if self.sampling_stream and self.num_stored == self.group_size:
            raise ConfigError(
                "rollout.sampling_stream must be 0 if all completions are read from disk, got "
                f"{self.sampling_stream}; use 0, or rollout.stored_frac less than 1"
            )
        if self.source == "last":
            raise ConfigError(
                "rollout.source=last would select another run when the run is resumed or repeated; use "
                "the name of the run, which `atrium runs` shows, or a path"
            )
        if self.num_stored == 0 or abs(self.num_stored - self.stored_frac * self.group_size) > 1e-6:
            shares = ", ".join(f"{number / self.group_size:g}" for number in range(1, self.group_size + 1))
            raise ConfigError(
                "rollout.stored_frac must give a whole number of completions with "
                f"rollout.group_size={self.group_size}, got {self.stored_frac:g}; use {shares}"
            )
        if use.behavior_logprobs == "recompute":
            raise ConfigError(
                "compute.behavior_logprobs=recompute requires the weights that sampled, which are "
                "unknown for completions read from disk; choose compute.behavior_logprobs=auto, or "
                "algorithm.ratio.gate.anchor=proximal and algorithm.ratio.weight.anchor=proximal"
            )

    def for_evaluation(self) -> None:
        """Return None: stored completions cannot answer a benchmark."""
        return None  # noqa: RET501 - the answer, not its absence
