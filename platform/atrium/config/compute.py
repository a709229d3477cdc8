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
    """Device, precision, batching and processes. Settings given as `auto` hold the value that was chosen."""

    device: Literal["cpu", "cuda"]
    """Device on which the policy is sampled and trained."""
    dtype: Literal["float32", "bfloat16"]
    """Number format of the model's forward pass; log-probabilities and the objective are always float32."""
    head_dtype: Literal["model", "float32"] = "model"
    """Number format in which vLLM and the trainer compute logits: the model's `dtype`, or float32. States and
    weights of the LM head are rounded to `dtype` in both cases; only their products are not."""
    residual_dtype: Literal["float32", "model"] = "float32"
    """Number format of the states between layers if one process computes in bfloat16: float32, or the model's
    `dtype`, as in vLLM and with several processes."""
    num_threads: Parallel
    """Number of threads for torch's CPU operations in each process."""
    micro_batch_tokens: Count | Literal["auto"]
    """Maximum number of tokens, including each row's prompt, in one pass of an update; auto to find it by
    trying."""
    memory_limit_mb: Annotated[int, Field(ge=64, le=10**9)] | None = None
    """Memory limit in megabytes: for the run on a GPU, for one pass of an update on a CPU; null for none."""
    packing: bool | Literal["auto"] = "auto"
    """Whether an update computes rows without padding and shared prompts once; false pads whole rows. auto
    packs if a check at the start finds that packing does not change the model's states."""
    recompute_activations: bool | Literal["auto"] = "auto"
    """Whether updates keep only the states between blocks (gradient checkpointing); auto to do so if memory
    is short."""
    compile: bool = False
    """Whether torch compiles the decoder blocks used in updates; takes a minute once, then runs fewer
    kernels."""
    on_oom: Literal["stop", "shrink"] = "stop"
    """Reaction to running out of memory in an update: end the run, or halve the micro-batches and repeat the
    update."""
    offload: bool = False
    """Whether the optimizer's state and, with several GPUs, the policy's shards are kept in main memory."""
    profile_step: Count | None = None
    """Step that torch's profiler traces into the run folder; null for none."""
    behavior_logprobs: Literal["auto", "engine", "recompute"]
    """Log-probabilities of the anchor `behavior`: the engine's, or those of a trainer pass with the weights
    that sampled. auto uses the engine's if both are the same and no part of the method compares them."""

    @property
    def max_micro_batch_tokens(self) -> int:
        """The tokens of micro-batches, or the largest value that the search may try."""
        return LARGE_BATCH_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @property
    def world_size(self) -> int:
        """The number of processes of the run on all nodes together."""
        return self.num_processes * self.num_nodes

    @property
    def is_launched(self) -> bool:
        """Whether a launcher process starts and watches the run's processes."""
        return self.world_size > 1 or self.max_restarts > 0


def check_alone(compute: ComputeConfig, what: str) -> None:
    """Raise `ConfigError` if settings for several processes are given to `what`, which runs as one."""
    for key, one in ONE_PROCESS.items():
        if (given := getattr(compute, key)) != one:
            raise ConfigError(
                f"compute.{key}={given} applies only to `atrium train`; {what}; use "
                f"{'null' if one is None else one}"
            )


ONE_PROCESS: Mapping[str, object] = {
    name: field.default for name, field in NodeSettings.model_fields.items() if name != "timeout_s"
}
"""The settings of a single process that is started here."""


def check_processes(compute: ComputeConfig, rollout: EngineSettings) -> None:
    """Raise `ConfigError` if processes have no rendezvous, or cannot share engines or prompts evenly."""
    if compute.num_nodes > 1 and compute.slurm is None and compute.rendezvous is None:
        raise ConfigError(
            f"compute.num_nodes={compute.num_nodes} needs a rendezvous address; set "
            "compute.rendezvous=HOST:PORT to the name of one of the nodes and a free port there"
        )
    if compute.rendezvous is not None and (compute.num_nodes == 1 or compute.slurm is not None):
        why = "one node needs none" if compute.num_nodes == 1 else "a SLURM job sets its own"
        raise ConfigError(
            f"compute.rendezvous={compute.rendezvous} has no effect: {why}; use null"
            + (", or set compute.num_nodes to at least 2" if compute.num_nodes == 1 else "")
        )
    if compute.allow_public_rendezvous and compute.num_nodes == 1:
        raise ConfigError(
            "compute.allow_public_rendezvous=true has no effect: a single node needs no rendezvous; use "
            "false, or set compute.num_nodes to at least 2"
        )
    num_prompts, shared = rollout.num_prompts, rollout.ranks_per_engine
    if compute.num_processes % shared:
        raise ConfigError(
            f"rollout.tensor_parallel={shared} does not divide "
            f"compute.num_processes={compute.num_processes}, and processes that share vLLM must be on one "
            f"node; use {_listed(divisors(compute.num_processes))}, or a number of processes that it "
            "divides"
        )
    if num_prompts * shared % compute.world_size:
        times = f" times rollout.tensor_parallel={shared}" if shared > 1 else ""
        raise ConfigError(
            f"compute.num_processes={compute.num_processes} on compute.num_nodes={compute.num_nodes} does "
            f"not divide rollout.num_prompts={num_prompts}{times}, and prompts are distributed evenly; use "
            f"a number of processes that divides it: {_listed(shared * n for n in divisors(num_prompts))}"
        )


def divisors(number: int) -> list[int]:
    """Return the divisors of this number in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
