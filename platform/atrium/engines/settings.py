"""The engines' settings, which also describe each engine's capabilities. Never torch.

`assemble/engines.py` starts the engine of a class.
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
    """Settings of the engine that decodes with transformers."""

    max_batch_tokens: Count | None
    """Maximum number of tokens that are generated at once, including padding; null for no limit."""
    unit_samples: Count = 256
    """Maximum number of completions that are sampled together, in whole groups. The number changes the last
    bits of log-probabilities."""

    def check(self, use: EngineUse) -> None:
        """Check as every engine, and that a batch can hold one completion."""
        super().check(use)
        if self.max_batch_tokens is not None and self.max_batch_tokens <= self.max_new_tokens:
            raise ConfigError(
                f"rollout.max_batch_tokens={self.max_batch_tokens} does not hold one prompt and a "
                f"completion of rollout.max_new_tokens={self.max_new_tokens}; use more, or null for no "
                "limit"
            )

    def memory(self, shape: ModelShape, demand: EngineDemand) -> tuple[MemoryItem, ...]:
        """Return a copy of the weights unless the trainer's are used, and the cache while decoding."""
        copied = demand.weight_bytes * shape.num_parameters if demand.is_apart else 0
        # Keys and values are kept in float32.
        token_bytes = NUMBER_BYTES["float32"] * shape.cache_numbers_per_token()
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
        """Return fewer samples at a time for larger models."""
        is_small = num_parameters <= _SMALL_MODEL_PARAMETERS
        return WaveSize() if is_small else WaveSize(num_samples=_SAMPLES_OF_LARGE_MODELS)

    def _tokens_at_once(self, num_tokens: int) -> int:
        return num_tokens if self.max_batch_tokens is None else min(num_tokens, self.max_batch_tokens)


class TransformersSettings(DecoderSettings):
    """Rollouts sampled by the transformers engine."""

    engine: Literal["transformers"]
    """The engine that samples completions."""


class VllmSettings(EngineSettings):
    """Rollouts sampled by vLLM."""

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
    """Size of the key-value cache in megabytes; null for what gpu_memory_fraction leaves."""
    kv_cache_dtype: Literal["auto", "fp8"]
    """Number format of cached keys and values; auto for compute.dtype."""
    enforce_eager: bool
    """Whether to skip CUDA graphs and compilation: vLLM starts sooner and decodes more slowly on a GPU."""
    sleep_level: Literal[1, 2] | None
    """How vLLM frees memory during updates: 1 moves weights to the host, 2 drops them; null keeps them."""
    max_num_batched_tokens: Count = 8192
    """Maximum number of tokens that one step computes. It bounds the prefill of prompts, and of samples that
    lost their place in the cache."""
    num_speculative_tokens: Count | None
    """Number of tokens that are guessed from repetitions in the text and checked at once; null for off."""
    start_timeout_s: Wait
    """Timeout in seconds for the start of vLLM, including compilation."""
    step_timeout_s: Wait
    """Timeout in seconds for one decoding step or one update of the weights."""
    tensor_parallel: Parallel = 1
    """Number of processes that share one vLLM, which splits weights and cache over them. With
    `placement=inside` these are consecutive processes of the run on one machine; each server starts its
    own."""

    @property
    def processes_per_engine(self) -> int:
        """The number of processes that share one engine, each on its own GPU if there are any."""
        return self.tensor_parallel

    @property
    def sleeps(self) -> bool:
        """Whether the engine frees its memory during updates."""
        return self.sleep_level is not None

    @property
    def allows_expandable_segments(self) -> bool:
        """Whether vLLM neither has sleeping memory pools of its own nor shares buffers between processes."""
        return not self.sleeps and self.tensor_parallel == 1

    def check(self, use: EngineUse) -> None:
        """Check as every engine, and for combinations that vLLM does not support."""
        if self.overlaps and self.sleeps:
            raise ConfigError(
                f"rollout.sleep_level={self.sleep_level}: with rollout.placement={self.placement} and "
                f"rollout.lag={self.lag} vLLM samples during updates and cannot free its memory for them; "
                "choose rollout.sleep_level=null, or rollout.placement=inside"
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
                    f"{', '.join(map(str, of_engine))}, but each of its processes needs its own "
                    f"(rollout.tensor_parallel={self.tensor_parallel}); name different ones"
                )
        if self.enforce_eager and use.compiles:
            raise ConfigError(
                "rollout.enforce_eager=true disables torch's compilation in this process, including "
                "compute.compile=true; use rollout.enforce_eager=false, or compute.compile=false"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"rollout.max_num_batched_tokens={self.max_num_batched_tokens} must be at least "
                f"rollout.max_num_seqs={self.max_num_seqs}, one token per completion; raise it"
            )
        if self.num_speculative_tokens is not None and use.evaluation_top_p < 1.0:
            raise ConfigError(
                f"rollout.num_speculative_tokens={self.num_speculative_tokens}: with speculation vLLM "
                f"reports wrong log-probabilities at evaluation.top_p={use.evaluation_top_p:g}; use null, "
                "or evaluation.top_p=1"
            )
        if self.context_length is not None and self.context_length <= self.max_new_tokens:
            raise ConfigError(
                f"rollout.context_length={self.context_length} does not fit a prompt before "
                f"rollout.max_new_tokens={self.max_new_tokens}; use more, or null for the model's own"
            )

    def _check_server(self, use: EngineUse) -> None:
        """Raise `ConfigError` if vLLM's server does not support the run."""
        found = {"rollout": self.temperature, "evaluation": use.evaluation_temperature}
        for section, value in found.items():
            if value > _MAX_SERVER_TEMPERATURE:
                raise ConfigError(
                    f"{section}.temperature must be at most {_MAX_SERVER_TEMPERATURE:g} with "
                    f"rollout.placement=server, got {value:g}; lower it, or choose rollout.placement=inside"
                )
        if use.has_stop_strings:
            raise ConfigError(
                "model.prompt.stop: servers have no tokenizer to find stop strings with; choose "
                "rollout.placement=inside"
            )
        if len({url.lower() for url in self.servers}) < len(self.servers):
            raise ConfigError("rollout.servers names a server twice; name each once")
        if self.continuous and not self.lag:
            raise ConfigError(
                "rollout.continuous=true: rollout.lag=0 would drop everything sampled during an update; "
                "choose rollout.lag=1 or more"
            )
        if self.continuous and use.behavior_logprobs == "recompute":
            raise ConfigError(
                "compute.behavior_logprobs=recompute needs the weights that sampled, but with "
                "rollout.continuous=true they change within a completion; choose auto"
            )
        if self.sleeps:
            raise ConfigError(
                f"rollout.sleep_level={self.sleep_level} has no effect with rollout.placement=server, "
                "whose servers have their own devices; choose rollout.sleep_level=null"
            )

    def check_machine(self, device: str) -> None:
        """Raise an error if no supported vLLM is installed, or settings for GPUs are given for a CPU."""
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
                "rollout.kv_cache_mb=null takes a share of a GPU's memory, but compute.device=cpu; give a "
                "size in megabytes, or choose rollout=vllm_cpu"
            )
        if self.sleeps or self.kv_cache_dtype != "auto":
            raise ConfigError(
                f"rollout.sleep_level={self.sleep_level} and rollout.kv_cache_dtype={self.kv_cache_dtype} "
                "require a GPU, but compute.device=cpu; use null and auto"
            )

    def check_model(self, shape: ModelShape, device: str) -> None:
        """Raise `ConfigError` if vLLM cannot split the model, or has no kernel for it."""
        if (obstacle := shape.splitting_obstacle(self.tensor_parallel)) is not None:
            possible = [n for n in range(1, shape.num_heads + 1) if shape.splitting_obstacle(n) is None]
            raise ConfigError(
                f"rollout.tensor_parallel={self.tensor_parallel} cannot split the model's {obstacle}; "
                f"use {', '.join(map(str, possible))}"
            )
        if device == "cpu" and shape.head_size not in CPU_HEAD_SIZES:
            raise ConfigError(
                f"model.head_dim={shape.head_size}: vLLM has no kernel for such attention heads on a CPU; "
                f"use {', '.join(str(size) for size in CPU_HEAD_SIZES)}, or rollout=transformers"
            )

    def check_cache(self, shape: ModelShape, dtype: str, device_bytes: int | None) -> None:
        """Raise `ConfigError` if the cache does not hold the longest completion."""
        if not shape.context_length:
            return
        length = self.longest(shape.context_length)
        longest = self._token_bytes(shape, dtype) * length
        if self.kv_cache_mb is not None:
            if self.kv_cache_mb * _MEGABYTE < longest:
                raise ConfigError(
                    f"rollout.kv_cache_mb={self.kv_cache_mb} does not hold a completion of {length} "
                    f"tokens, which needs {-(-longest // _MEGABYTE)}; use at least that, or lower "
                    "rollout.context_length"
                )
        elif device_bytes is not None:
            weights = self._weights_bytes(shape, dtype)
            budget = self.gpu_memory_fraction * device_bytes
            if weights + longest > budget:
                raise ConfigError(
                    f"rollout.gpu_memory_fraction={self.gpu_memory_fraction:g} gives vLLM "
                    f"{budget / _GB:.1f} GB, "
                    f"but the weights in {dtype} take {weights / _GB:.1f} GB and one completion of "
                    f"{length} tokens {longest / _GB:.1f} GB; raise it to "
                    f"{min(1.0, (weights + longest) / device_bytes):.2f}, or lower rollout.context_length"
                )

    def longest(self, allowed: int) -> int:
        """Return the maximum tokens of a prompt and its completion, at most `allowed`, the model's limit."""
        if self.context_length is not None and self.context_length > allowed:
            raise ConfigError(
                f"rollout.context_length={self.context_length} must be at most {allowed}, the model's "
                "maximum; lower it, or use null for the maximum"
            )
        return self.context_length or allowed

    def memory(self, shape: ModelShape, demand: EngineDemand) -> tuple[MemoryItem, ...]:
        """Return weights and cache: in all phases, or with `sleep_level` at the start and while sampling."""
        phases = (Phase.START, Phase.SAMPLING, Phase.EVALUATION) if self.sleeps else tuple(Phase)
        # Sharded weights are sent at once, and stay awake until the engine samples.
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
        """As many completions as `max_num_seqs` and the cache allow."""
        token_bytes = self._token_bytes(shape, dtype)
        return Concurrency(
            num_rows=self.max_num_seqs,
            cache_tokens=(self._cache_bytes(shape, dtype, device_bytes) or 0) // token_bytes,
            token_bytes=token_bytes,
            num_devices=self.tensor_parallel,
        )

    def _cache_bytes(self, shape: ModelShape, dtype: str, device_bytes: int | None) -> int | None:
        """Bytes of the cache on one device; None where a share of unknown memory is asked for."""
        if self.kv_cache_mb is not None:
            return self.kv_cache_mb * _MEGABYTE
        if device_bytes is None:
            return None
        return max(0, int(self.gpu_memory_fraction * device_bytes) - self._weights_bytes(shape, dtype))

    def _weights_bytes(self, shape: ModelShape, dtype: str) -> int:
        return NUMBER_BYTES[dtype] * shape.num_parameters // self.tensor_parallel

    def _token_bytes(self, shape: ModelShape, dtype: str) -> int:
        """Return the bytes of the cache per token on each of the ranks that share it."""
        cached = dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return NUMBER_BYTES[cached] * shape.cache_numbers_per_token(self.tensor_parallel)

    def prepare_environment(self, device: str, cache_dir: Path) -> None:
        """Set the environment variables of vLLM and the compilers; those set by the user are kept."""
        super().prepare_environment(device, cache_dir)
        set_environment(device, enforce_eager=self.enforce_eager, cache_dir=cache_dir)

    def for_evaluation(self) -> Self:
        """Return the settings of a single-process engine that has the GPU for itself."""
        alone = ALONE | {"tensor_parallel": 1, "sleep_level": None, "gpu_memory_fraction": _ALONE_FRACTION}
        return self.model_copy(update=alone)


class BankSettings(DecoderSettings):
    """Rollouts read from disk, all of each group or a part; the transformers engine samples the rest."""

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
        """Check as every engine, and for settings that completions from disk do not support."""
        super().check(use)
        if self.lag:
            raise ConfigError(f"rollout.lag={self.lag} has no effect on completions read from disk; use 0")
        if self.sampling_stream and self.num_stored == self.group_size:
            raise ConfigError(
                f"rollout.sampling_stream={self.sampling_stream} has no effect if all completions are read "
                "from disk; use 0, or rollout.stored_frac below 1"
            )
        if self.source == "last":
            raise ConfigError(
                "rollout.source=last would select another run when this one is resumed or repeated; use "
                "the run's own name, which `atrium runs` shows, or a path"
            )
        if self.num_stored == 0 or abs(self.num_stored - self.stored_frac * self.group_size) > 1e-6:
            shares = ", ".join(f"{number / self.group_size:g}" for number in range(1, self.group_size + 1))
            raise ConfigError(
                f"rollout.stored_frac={self.stored_frac:g} of rollout.group_size={self.group_size} must be "
                f"a whole number of completions; use {shares}"
            )
        if use.behavior_logprobs == "recompute":
            raise ConfigError(
                "compute.behavior_logprobs=recompute needs the weights that sampled, which do not exist "
                "for completions read from disk; choose auto, or for the policy at the start of the step "
                "algorithm.ratio.gate.anchor=proximal and algorithm.ratio.weight.anchor=proximal"
            )

    def for_evaluation(self) -> None:
        """Return None: stored completions cannot answer a benchmark."""
        return None  # noqa: RET501 - the answer, not its absence
