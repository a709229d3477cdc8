"""Settings of the machines that a run computes on: the group `compute`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from atrium.base.errors import ConfigError
from atrium.base.section import Count, Parallel
from atrium.config.machine import LARGE_BATCH_TOKENS
from atrium.engines.settings import EngineSettings
from atrium.launch.settings import NodeSettings


class ComputeConfig(NodeSettings):
    """Device, precision, batching and processes; what was `auto` holds what was chosen for it."""

    device: Literal["cpu", "cuda"]
    """Where the policy is sampled from and trained."""
    dtype: Literal["float32", "bfloat16"]
    """Of the model's forward pass; log-probabilities and the objective are float32 always."""
    head_dtype: Literal["model", "float32"] = "model"
    """What vLLM and the trainer compute logits in: the model's `dtype`, or float32 beside it. States and
    weights of the LM head are rounded to `dtype` either way, only their products are not."""
    residual_dtype: Literal["float32", "model"] = "float32"
    """What one process keeps the states between layers in when it computes in bfloat16: float32, or the
    model's `dtype`, as vLLM and several processes do."""
    num_threads: Parallel
    """Threads of torch's CPU operations, in each process."""
    micro_batch_tokens: Count | Literal["auto"]
    """The most tokens, each row's prompt counted, in one pass of an update; auto until memory was tried."""
    memory_limit_mb: Annotated[int, Field(ge=64, le=10**9)] | None = None
    """Megabytes for the run on a GPU, or on a CPU for one pass of an update; null for all there are."""
    packing: bool | Literal["auto"] = "auto"
    """Whether an update computes rows without padding and shared prompts once; false pads whole rows. auto
    packs where a check at the start finds that the model's packed states are its own."""
    recompute_activations: bool | Literal["auto"] = "auto"
    """Whether updates keep states between blocks only (gradient checkpointing); auto where memory lacks."""
    compile: bool = False
    """Whether torch compiles the decoder blocks that updates run; a minute once, then fewer kernels."""
    on_oom: Literal["stop", "shrink"] = "stop"
    """What running out of memory in an update does: end the run, or halve micro-batches and repeat it."""
    offload: bool = False
    """Whether the optimiser's state, and of several GPUs the shards of the policy, lie in main memory."""
    profile_step: Count | None = None
    """The step that torch's profiler traces into the run folder; null for none."""
    behavior_logprobs: Literal["auto", "engine", "recompute"]
    """Whose numbers the anchor `behavior` has: the engine's, or a pass of the trainer by the weights that
    sampled; auto for the engine's where both are the same and no part of the method compares them."""

    @property
    def max_micro_batch_tokens(self) -> int:
        """The tokens of micro-batches, or the most that trying may find."""
        return LARGE_BATCH_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @property
    def world_size(self) -> int:
        """Processes of the run on all nodes together."""
        return self.num_processes * self.num_nodes

    @property
    def is_launched(self) -> bool:
        """Whether the run's processes are started and watched by another one."""
        return self.world_size > 1 or self.max_restarts > 0


def check_alone(compute: ComputeConfig, what: str) -> None:
    """Raise `ConfigError` where settings of several processes are given to `what`, which has one."""
    for key, one in ONE_PROCESS.items():
        if (given := getattr(compute, key)) != one:
            raise ConfigError(
                f"compute.{key}={given} is for `atrium train`; {what}; "
                f"allowed is {'null' if one is None else one}"
            )


ONE_PROCESS: Mapping[str, object] = {
    name: field.default for name, field in NodeSettings.model_fields.items() if name != "timeout_s"
}
"""The settings of a single process that is started here."""


def check_processes(compute: ComputeConfig, rollout: EngineSettings) -> None:
    """Raise `ConfigError` where processes have nowhere to meet, or cannot share engines or prompts evenly."""
    if compute.num_nodes > 1 and compute.slurm is None and compute.rendezvous is None:
        raise ConfigError(
            f"compute.num_nodes={compute.num_nodes} needs a place where the nodes meet; allowed is "
            "compute.rendezvous=HOST:PORT with the name of one of them and a port that is free there"
        )
    if compute.rendezvous is not None and (compute.num_nodes == 1 or compute.slurm is not None):
        why = "one node meets nobody" if compute.num_nodes == 1 else "a SLURM job knows where its nodes meet"
        raise ConfigError(
            f"compute.rendezvous={compute.rendezvous} has no effect: {why}; allowed is null"
            + (", or compute.num_nodes of at least 2" if compute.num_nodes == 1 else "")
        )
    if compute.allow_public_rendezvous and compute.num_nodes == 1:
        raise ConfigError(
            "compute.allow_public_rendezvous=true has no effect: one node meets nobody; allowed is false, or "
            "compute.num_nodes of at least 2"
        )
    num_prompts, shared = rollout.num_prompts, rollout.ranks_per_engine
    if compute.num_processes % shared:
        raise ConfigError(
            f"rollout.tensor_parallel={shared} does not divide compute.num_processes="
            f"{compute.num_processes}, and processes that share vLLM are on one node; allowed is "
            f"{_listed(divisors(compute.num_processes))}, or a number of processes that it divides"
        )
    if num_prompts * shared % compute.world_size:
        times = f" times rollout.tensor_parallel={shared}" if shared > 1 else ""
        raise ConfigError(
            f"compute.num_processes={compute.num_processes} on compute.num_nodes={compute.num_nodes} does "
            f"not divide rollout.num_prompts={num_prompts}{times}, and prompts are dealt evenly; allowed is "
            f"a number of processes that divides it: {_listed(shared * n for n in divisors(num_prompts))}"
        )


def divisors(number: int) -> list[int]:
    """The numbers that divide this one, in their order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
