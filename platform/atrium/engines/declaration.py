"""Declarations of every engine in its settings: interface, capabilities and memory use.

Code that depends on how a run samples reads the engine's class and never compares its name, so a user's
engine can describe itself. The classes of the engines are in `settings`. Never torch.
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
from atrium.base.section import Axis, Count, CountOrZero, Parallel, Positive, PositiveFrac, Section, Text
from atrium.models.shape import ModelShape

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}
"""Bytes per number."""

REMOVED_PLACE_SETTINGS = ("num_engines", "engine_timeout_s", "cluster_address", "allow_open_cluster")
"""Removed settings for the location of engines in earlier versions."""

SERVER_SETTINGS = ("num_servers", "servers", "weights_dir", "devices", "weight_transfer")
"""Settings that apply only to `placement=server`."""
PLACE_SETTINGS = ("placement", *SERVER_SETTINGS)
"""Settings for the location of engines; none changes what they sample."""

_LOOPBACK = re.compile(r"https?://(localhost|127\.[\d.]+|\[::1\]):")
_OLD_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def _check_url(value: str) -> str:
    if re.fullmatch(r"https?://[^\s/@]+:\d{1,5}", value) is None:
        raise ValueError("http:// or https:// with a host and a port, such as http://10.0.0.2:8000")
    return value


class Sampling(Section):
    """Sampling of answers in evaluations; training samples from the policy's own distribution."""

    temperature: Annotated[float, Field(ge=0.0, le=1e6)] = 1.0
    """Sampling temperature; 0 means greedy decoding."""
    top_p: PositiveFrac = 1.0
    """Probability mass of the likeliest tokens that are sampled from; 1 for all tokens."""
    top_k: Count | None = None
    """Number of the likeliest tokens that are sampled from; null for all."""
    min_p: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Minimum probability of a sampled token, relative to that of the likeliest token; 0 for no minimum."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10.0)] = 1.0
    """Factor for the logits of tokens in prompt and answer, by which positive logits are divided and negative
    ones multiplied; 1 for no penalty."""
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Penalty subtracted from the logit of each token that the answer has; 0 for no penalty."""
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Penalty subtracted from a token's logit for every time that the answer has it; 0 for no penalty."""
    max_new_tokens: Count
    """Maximum number of tokens of an answer; by default that of rollouts."""

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float) -> float:
        if 0.0 < value < 0.01:  # the logits are divided by it and may overflow; vLLM uses at least 0.01
            raise ValueError("0, which is greedy decoding, or at least 0.01")
        return value


@dataclass(frozen=True, kw_only=True)
class EngineUse:
    """The parts of a run that decide whether it can use an engine.

    Attributes
    ----------
    device
        Device of the run: `cpu` or `cuda`.
    num_ranks, num_nodes
        Number of processes of the run, and of the machines that they are on.
    evaluation_top_p, evaluation_temperature
        The evaluations' `top_p` and temperature.
    behavior_logprobs
        The setting `compute.behavior_logprobs`.
    compiles
        Whether torch compiles blocks of the model for updates.
    has_stop_strings
        Whether prompts name strings that end a completion.
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
    """The quantities that determine an engine's memory, besides its own settings and the model's shape.

    Attributes
    ----------
    dtype
        Number format of the model: `float32` or `bfloat16`.
    weight_bytes
        Bytes per weight of the trainer.
    is_apart
        Whether the trainer's module cannot be sampled from: it is sharded, adapted, or in another process.
    num_ranks
        Number of processes that share the work.
    rollout_tokens, evaluation_tokens
        Tokens of a whole batch of rollouts, and of the longest prompt with the longest answer.
    device_bytes
        The device's memory; None if unknown.
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
    """Limits on the work given to an engine at once: samples, and tokens of prompts and answers.

    At least one problem, and always whole problems. The defaults suit a small model on a CPU.
    """

    num_samples: int = 512
    num_tokens: int = 131_072


class EngineSettings(Axis, axis=True, tag="engine"):
    """Settings shared by all engines."""

    has_own_weights: ClassVar[bool] = False
    """Whether it holds its own weights; otherwise it can sample from the trainer's module."""
    reads_stored: ClassVar[bool] = False
    """Whether completions may come from any writer, at any time."""
    runs_as_server: ClassVar[bool] = False
    """Whether it can run as a server."""
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
    """Stream of random numbers that completions are drawn from. Another stream repeats a run with other
    completions and everything else equal."""
    lag: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of steps by which sampling is ahead: with k, the weights after step t-1-k sample the batch of
    step t."""
    placement: Literal["inside", "server"] = "inside"
    """Where completions are sampled: inside the trainer's process, or by vLLM servers in separate processes.
    With a `lag`, servers sample during updates. This saves time if they have devices of their own, and keeps
    a copy of the trained parameters."""
    continuous: bool = False
    """Whether servers sample without a pause and receive new weights in the middle of completions. Groups
    older than `lag` steps are dropped. Such a run cannot be repeated (speed not measured)."""
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
    """GPUs of the servers that a machine starts: first those of the first server, then those of the next.
    Indices count the GPUs that the run sees. null for the GPUs after the trainer's; in an evaluation, for all
    GPUs."""
    weight_transfer: Literal["host", "nccl"] = "host"
    """How new weights reach servers. `host` writes files; `nccl` sends them from GPU to GPU by vLLM's own
    transfer, without a copy of the model on the host (not measured)."""
    max_mismatch: Positive | Literal["auto"] | None = "auto"
    """Maximum mean difference between the log-probabilities of engine and trainer, in nats. A larger one ends
    the run. auto is 0.001 if both compute in float32 and otherwise 0.1, but no bound for stored rollouts.
    null for no bound."""

    @property
    def is_apart(self) -> bool:
        """Whether it samples from other weights than those of this process's module."""
        return self.has_own_weights or self.placement != "inside"

    @property
    def processes_per_engine(self) -> int:
        """The number of processes that share one engine, each on its own GPU if there are any."""
        return 1

    @property
    def ranks_per_engine(self) -> int:
        """The number of processes of the run itself that share one engine."""
        return self.processes_per_engine if self.placement == "inside" else 1

    @property
    def num_outside(self) -> int:
        """The number of servers, if `placement` has any."""
        return len(self.servers) or self.num_servers

    def num_gpus(self, num_processes: int, num_nodes: int) -> int:
        """Return the number of GPUs per machine for the run's processes and the servers it starts."""
        if self.placement == "inside" or self.servers:
            return num_processes
        if self.devices is not None:
            return max(num_processes, *(place + 1 for place in self.devices))
        return num_processes + self.num_outside * self.processes_per_engine // num_nodes

    @property
    def num_kept_weights(self) -> int:
        """The number of weight versions whose files are kept for servers, one per batch being sampled."""
        return max(2, self.lag + 1)

    @property
    def overlaps(self) -> bool:
        """Whether a batch is sampled during the previous update."""
        return self.placement != "inside" and self.lag > 0

    @property
    def sends_weights(self) -> bool:
        """Whether new weights are sent from GPU to GPU."""
        return self.weight_transfer == "nccl"

    @property
    def sends_weights_afar(self) -> bool:
        """Whether NCCL must reach other machines for that."""
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
        """Raise `ConfigError` if the engine does not support the run, or a setting has no effect."""
        for name in (*SERVER_SETTINGS, "continuous"):
            if self.placement == "inside" and (value := getattr(self, name)) != ALONE[name]:
                raise ConfigError(
                    f"rollout.{name}={json.dumps(value).strip(chr(34))} has no effect with "
                    "rollout.placement=inside; choose rollout.placement=server, or remove it"
                )
        self._check_placed(use)
        if self.sends_weights:
            self._check_sending(use)

    def _check_placed(self, use: EngineUse) -> None:
        """Raise `ConfigError` if servers cannot be shared evenly by processes and devices."""
        if self.placement == "inside":
            return
        if not self.runs_as_server:
            raise ConfigError(
                f"rollout.placement=server: rollout.engine={self.engine} has no server; choose rollout=vllm, "
                "or rollout.placement=inside"
            )
        if self.servers and (self.num_servers > 1 or self.devices is not None):
            raise ConfigError(
                "rollout.num_servers and rollout.devices have no effect on servers given by "
                "rollout.servers; remove them"
            )
        name = "servers" if self.servers else "num_servers"
        if self.num_outside % use.num_ranks:
            raise ConfigError(
                f"rollout.{name}={self.num_outside} cannot be shared evenly by the {use.num_ranks} "
                f"processes of the run; use a multiple of {use.num_ranks}"
            )
        num_devices = self.num_outside * self.processes_per_engine // use.num_nodes
        if self.devices is not None and len(self.devices) != num_devices:
            raise ConfigError(
                f"rollout.devices={list(self.devices)}: the servers of "
                f"rollout.num_servers={self.num_servers} need {num_devices} on each machine; name that "
                "many, or use null"
            )

    def _check_sending(self, use: EngineUse) -> None:
        """Raise `ConfigError` unless the trainer and each server process have a GPU of their own."""
        num_trained_on, devices = use.num_ranks // use.num_nodes, self.devices or ()
        has_shared = len({*devices, *range(num_trained_on)}) < len(devices) + num_trained_on
        obstacle = None
        if use.device != "cuda":
            obstacle = f"compute.device={use.device} has no GPU to send from"
        elif has_shared:
            obstacle = (
                f"rollout.devices={list(devices)} names a GPU twice or one of the trainer's (the first "
                f"{num_trained_on}), and NCCL needs one GPU per process"
            )
        if obstacle is not None:
            raise ConfigError(
                f"rollout.weight_transfer=nccl: {obstacle}; change that, or choose "
                "rollout.weight_transfer=host"
            )

    def check_machine(self, device: str) -> None:
        """Raise `MissingDependencyError` or `ConfigError` if the engine cannot run here on `device`."""

    def check_model(self, shape: ModelShape, device: str) -> None:
        """Raise `ConfigError` if the engine cannot compute such a model on `device`."""

    def check_cache(self, shape: ModelShape, dtype: str, device_bytes: int | None) -> None:
        """Raise `ConfigError` if the engine's memory cannot hold the longest completion."""

    def memory(self, shape: ModelShape, demand: EngineDemand) -> tuple[MemoryItem, ...]:
        """Return the engine's uses of a device's memory, and their phases."""
        raise NotImplementedError

    def concurrency(self, shape: ModelShape, dtype: str, device_bytes: int) -> Concurrency | None:
        """Return how many completions are decoded at once on this GPU; None without a prediction of speed."""
        return None

    def wave_size(self, num_parameters: int) -> WaveSize | None:
        """Return the limits on an evaluation's work per call; None for an engine that batches by itself.

        This is a fixed rule, not a measurement: it affects the last bits of log-probabilities, so a resumed
        evaluation must use the same.
        """
        return None

    def prepare_environment(self, device: str, cache_dir: Path) -> None:
        """Set the environment variables of torch and the engine's libraries, before any is imported.

        On a GPU this enables expandable segments, so that micro-batches of many sizes do not fragment memory.
        Variables set by the user are kept.
        """
        if device == "cuda" and self.allows_expandable_segments and _OLD_ALLOCATOR not in os.environ:
            os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

    def for_evaluation(self) -> Self | None:
        """Return the engine's settings in an evaluation by one process; None if it cannot answer."""
        return self.model_copy(update=ALONE)


ALONE = {name: EngineSettings.model_fields[name].default for name in (*PLACE_SETTINGS, "lag", "continuous")}
"""Settings of a single process's engine: the defaults of everything that concerns servers."""
