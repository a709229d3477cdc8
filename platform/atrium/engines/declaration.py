"""The base class of all engines' settings, which describes an engine's capabilities and memory use.

Code that depends on an engine's capabilities reads them from this class and never compares engine names, so
that a user-defined engine can describe itself. The built-in engines' settings are in `settings`. This module
does not import torch.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator

from atrium.base.errors import ConfigError
from atrium.base.records import Concurrency, MemoryItem
from atrium.base.section import Choice, Count, CountOrZero, Parallel, Positive, PositiveFrac, Section, Text
from atrium.models.shape import ModelShape

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}
"""Bytes per number in each number format."""

REMOVED_PLACE_SETTINGS = ("num_engines", "engine_timeout_s", "cluster_address", "allow_open_cluster")
"""Settings for the location of engines that earlier versions of Atrium had."""

SERVER_SETTINGS = ("num_servers", "servers", "weights_dir", "devices", "weight_transfer")
"""Settings that apply only to `placement=server`."""
PLACE_SETTINGS = ("placement", *SERVER_SETTINGS)
"""Settings for the location of engines; none changes what they sample."""

_LOOPBACK = re.compile(r"https?://(localhost|127\.[\d.]+|\[::1\]):")
_OLD_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def _check_url(value: str) -> str:
    if re.fullmatch(r"https?://[^\s/@]+:\d{1,5}", value) is None:
        raise ValueError(
            f"the address of a server must have the form http://HOST:PORT or https://HOST:PORT, got {value}"
        )
    return value


class Sampling(Section):
    """Sampling parameters of evaluation answers. Training rollouts follow the policy's own distribution."""

    temperature: Annotated[float, Field(ge=0.0, le=1e6)] = 1.0
    """Sampling temperature; 0 means greedy decoding."""
    top_p: PositiveFrac = 1.0
    """Probability mass of the likeliest tokens that are sampled from; 1 for all tokens."""
    top_k: Count | None = None
    """Number of the likeliest tokens that are sampled from; null for all."""
    min_p: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Minimum probability of a sampled token, relative to that of the likeliest token; 0 for none."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10.0)] = 1.0
    """Factor for the logits of tokens in prompt and answer, by which positive logits are divided and negative
    ones multiplied; 1 for no penalty."""
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Penalty subtracted from the logit of each token that occurs in the answer; 0 for none."""
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Penalty subtracted from a token's logit for each of its occurrences in the answer; 0 for none."""
    max_new_tokens: Count
    """Maximum number of tokens of an answer; by default `rollout.max_new_tokens`."""

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float) -> float:
        if 0.0 < value < 0.01:  # dividing logits by less may overflow; vLLM uses at least 0.01
            raise ValueError(f"temperature must be 0 (greedy decoding) or at least 0.01, got {value:g}")
        return value


@dataclass(frozen=True, kw_only=True)
class EngineUse:
    """The properties of a run that determine whether an engine supports it.

    Attributes
    ----------
    device
        Device of the run: `cpu` or `cuda`.
    num_ranks, num_nodes
        Number of the run's processes, and of its machines.
    evaluation_top_p, evaluation_temperature
        The settings `evaluation.top_p` and `evaluation.temperature`.
    behavior_logprobs
        The setting `compute.behavior_logprobs`.
    compiles
        Whether torch compiles blocks of the model for updates.
    has_stop_strings
        Whether the prompt settings list strings that end a completion.
    """

    device: str
    num_ranks: int
    num_nodes: int
    evaluation_top_p: float
    evaluation_temperature: float
    behavior_logprobs: str
    compiles: bool
    has_stop_strings: bool


@dataclass(frozen=True, kw_only=True)
class EngineDemand:
    """The quantities that determine an engine's memory, apart from its own settings and the model's shape.

    Attributes
    ----------
    dtype
        Number format of the model's forward pass: `float32` or `bfloat16`.
    weight_bytes
        Bytes per weight that the trainer stores: 4, or 2 if it stores bfloat16 weights.
    is_apart
        Whether an engine in the trainer's process must copy the weights, because they are sharded or have
        adapters.
    num_ranks
        Number of the run's processes, which share the samples evenly.
    rollout_tokens
        Number of tokens, prompts included, of a step's whole batch of rollouts.
    evaluation_tokens
        Number of tokens of an evaluation's longest prompt and answer together.
    device_bytes
        Size of the device's memory in bytes, or None if unknown.
    """

    dtype: str
    weight_bytes: int
    is_apart: bool
    num_ranks: int
    rollout_tokens: int
    evaluation_tokens: int
    device_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveSize:
    """Limits on the work that an engine receives at once: samples, and tokens of prompts and answers.

    A wave always consists of whole problems, and of at least one. The defaults suit a small model on a CPU.
    """

    num_samples: int = 512
    num_tokens: int = 131_072


class EngineSettings(Choice, axis=True, tag="engine"):
    """Settings shared by all engines."""

    has_own_weights: ClassVar[bool] = False
    """Whether the engine always has its own copy of the weights; if not, it can use the trainer's module."""
    reads_stored: ClassVar[bool] = False
    """Whether the engine returns stored completions, whose sampling weights are unknown."""
    runs_as_server: ClassVar[bool] = False
    """Whether the engine can run as a server."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Python packages, besides torch and transformers, whose installed version affects the completions."""

    if TYPE_CHECKING:  # every engine declares its own literal
        engine: str

    num_prompts: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of problems sampled in each training step."""
    group_size: Annotated[int, Field(ge=1, le=100_000)]
    """Number of completions sampled per problem: the group that advantages compare."""
    max_new_tokens: Count
    """Maximum number of tokens of a completion, including its stop token."""
    temperature: Annotated[float, Field(ge=0.01, le=100.0)]
    """Temperature of the policy, in sampling and in training."""

    sampling_stream: CountOrZero = 0
    """Index of the random stream from which completions are drawn. Another stream yields other completions;
    everything else stays equal."""
    lag: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of steps by which sampling is ahead of training: with lag k, the weights after step t-1-k
    sample the batch of step t."""
    placement: Literal["inside", "server"] = "inside"
    """Where completions are sampled: inside the trainer's process, or by vLLM servers in separate processes.
    With a `lag`, servers sample during updates. This saves time if servers have their own devices, but takes
    memory for a copy of the trained parameters."""
    continuous: bool = False
    """Whether servers sample without a pause and receive new weights in the middle of completions. Groups
    older than `lag` steps are dropped. Such a run is not reproducible, and its speed was not measured."""
    num_servers: Parallel = 1
    """Number of vLLM servers that `placement=server` starts on this machine. The processes of the run share
    them evenly."""
    servers: tuple[Annotated[str, AfterValidator(_check_url)], ...] = ()
    """URLs of running vLLM servers that `placement=server` uses instead of starting servers. Their token is
    read from the environment variable ATRIUM_TOKEN."""
    weights_dir: Text | None = None
    """Folder for the weight files of `placement=server`, which all servers must be able to read; null for
    shared memory of this machine."""
    devices: tuple[CountOrZero, ...] | None = None
    """GPUs of the servers that a machine starts: first the GPUs of the first server, then of the next one.
    The values are indices of the GPUs that are visible to the run. null for the GPUs after the trainer's, or
    for all GPUs in an evaluation."""
    weight_transfer: Literal["host", "nccl"] = "host"
    """How new weights reach servers. `host` writes files; `nccl` sends weights from GPU to GPU with vLLM's
    own transfer, without a copy of the model on the host (speed not measured)."""
    max_mismatch: Positive | Literal["auto"] | None = "auto"
    """Maximum mean difference between the log-probabilities of engine and trainer, in nats; a larger
    difference ends the run. auto means no bound for stored rollouts, 0.001 if both compute in float32, and
    otherwise 0.1. null for no bound."""

    @property
    def is_apart(self) -> bool:
        """Whether the engine always uses its own copy of the weights, never the trainer's module."""
        return self.has_own_weights or self.placement != "inside"

    @property
    def processes_per_engine(self) -> int:
        """The number of processes that share one engine. On GPUs, each process uses its own GPU."""
        return 1

    @property
    def ranks_per_engine(self) -> int:
        """The number of the run's own processes that share one engine: always 1 with `placement=server`."""
        return self.processes_per_engine if self.placement == "inside" else 1

    @property
    def num_outside(self) -> int:
        """The number of servers, which is meaningful only with `placement=server`."""
        return len(self.servers) or self.num_servers

    def num_gpus(self, num_processes: int, num_nodes: int) -> int:
        """Return the number of GPUs per machine for the run's processes and the servers that they start.

        `num_processes` is the number of the run's processes per machine, and `num_nodes` the number of
        machines.
        """
        if self.placement == "inside" or self.servers:
            return num_processes
        if self.devices is not None:
            return max(num_processes, *(place + 1 for place in self.devices))
        return num_processes + self.num_outside * self.processes_per_engine // num_nodes

    @property
    def num_kept_weights(self) -> int:
        """The number of weight versions whose files are kept for servers: `lag` + 1, but at least 2."""
        return max(2, self.lag + 1)

    @property
    def overlaps(self) -> bool:
        """Whether servers sample a later batch while the trainer updates on an earlier one."""
        return self.placement != "inside" and self.lag > 0

    @property
    def sends_weights(self) -> bool:
        """Whether new weights are sent from GPU to GPU."""
        return self.weight_transfer == "nccl"

    @property
    def sends_weights_afar(self) -> bool:
        """Whether NCCL sends new weights to other machines."""
        return self.sends_weights and any(_LOOPBACK.match(url) is None for url in self.servers)

    @property
    def sleeps(self) -> bool:
        """Whether the engine frees its memory during updates."""
        return False

    @property
    def allows_expandable_segments(self) -> bool:
        """Whether the engine is compatible with torch's expandable segments of GPU memory."""
        return True

    def check(self, use: EngineUse) -> None:
        """Raise `ConfigError` if the engine does not support the run, or if a setting has no effect."""
        for name in (*SERVER_SETTINGS, "continuous"):
            if self.placement == "inside" and (value := getattr(self, name)) != ALONE[name]:
                raise ConfigError(
                    f"rollout.{name}={json.dumps(value).strip(chr(34))} has no effect with "
                    "rollout.placement=inside; remove it, or choose rollout.placement=server"
                )
        self._check_placed(use)
        if self.sends_weights:
            self._check_sending(use)

    def _check_placed(self, use: EngineUse) -> None:
        """Raise `ConfigError` if the settings of `placement=server` do not fit the engine or the run."""
        if self.placement == "inside":
            return
        if not self.runs_as_server:
            raise ConfigError(
                f"rollout.placement=server cannot be used with rollout.engine={self.engine}, which has "
                "no server; choose rollout=vllm, or rollout.placement=inside"
            )
        if self.servers and (self.num_servers > 1 or self.devices is not None):
            raise ConfigError(
                "rollout.num_servers and rollout.devices have no effect with rollout.servers, which "
                "names running servers; remove them"
            )
        name = "servers" if self.servers else "num_servers"
        if self.num_outside % use.num_ranks:
            raise ConfigError(
                f"rollout.{name} must be a multiple of the number of processes, {use.num_ranks}, got "
                f"{self.num_outside}"
            )
        num_devices = self.num_outside * self.processes_per_engine // use.num_nodes
        if self.devices is not None and len(self.devices) != num_devices:
            raise ConfigError(
                f"rollout.devices must have length {num_devices}, the number of GPUs on each machine for "
                f"rollout.num_servers={self.num_servers}, got {list(self.devices)}; change it, or use "
                "null"
            )

    def _check_sending(self, use: EngineUse) -> None:
        """Raise `ConfigError` unless each process of the trainer and of the servers has a separate GPU."""
        num_trained_on, devices = use.num_ranks // use.num_nodes, self.devices or ()
        has_shared = len({*devices, *range(num_trained_on)}) < len(devices) + num_trained_on
        obstacle = None
        if use.device != "cuda":
            obstacle = f"compute.device={use.device} is not a GPU"
        elif has_shared:
            obstacle = (
                f"rollout.devices={list(devices)} names a GPU twice or one of the trainer's (the first "
                f"{num_trained_on}), but NCCL requires a separate GPU for each process"
            )
        if obstacle is not None:
            raise ConfigError(
                f"rollout.weight_transfer=nccl cannot be used, since {obstacle}; change these settings, "
                "or choose rollout.weight_transfer=host"
            )

    def check_machine(self, device: str) -> None:
        """Raise `MissingDependencyError` or `ConfigError` if the engine cannot run on this machine."""

    def check_model(self, shape: ModelShape, device: str) -> None:
        """Raise `ConfigError` if the engine cannot compute a model of this shape on `device`."""

    def check_cache(self, shape: ModelShape, dtype: str, device_bytes: int | None) -> None:
        """Raise `ConfigError` if the engine's cache is too small for the longest completion."""

    def memory(self, shape: ModelShape, demand: EngineDemand) -> tuple[MemoryItem, ...]:
        """Return the items that the engine keeps in a device's memory, with their sizes and phases."""
        raise NotImplementedError

    def concurrency(self, shape: ModelShape, dtype: str, device_bytes: int) -> Concurrency | None:
        """Return the limits on the completions that one engine decodes at once, or None if unknown.

        With None, the duration of the run is not predicted. `device_bytes` is the memory of one device.
        """
        return None

    def wave_size(self, num_parameters: int) -> WaveSize | None:
        """Return the limits on an evaluation's work per call, or None for an engine that batches by itself.

        The limits follow a fixed rule, not a measurement: they affect the last bits of log-probabilities, so
        a resumed evaluation must use the same limits.
        """
        return None

    def prepare_environment(self, device: str, cache_dir: Path) -> None:
        """Set the environment variables of torch and the engine's libraries.

        This must be called before torch or any of these libraries is imported. Variables set by the user are
        kept. On a GPU, expandable segments are enabled if the engine allows them, so that micro-batches of
        many sizes do not fragment memory.
        """
        if device == "cuda" and self.allows_expandable_segments and _OLD_ALLOCATOR not in os.environ:
            os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

    def for_evaluation(self) -> Self | None:
        """Return the settings for an evaluation in one process, or None if the engine cannot sample."""
        return self.model_copy(update=ALONE)


ALONE = {name: EngineSettings.model_fields[name].default for name in (*PLACE_SETTINGS, "lag", "continuous")}
"""Settings of an engine in a single process: the defaults of all settings that concern servers."""
