"""Settings of the machines that a run computes on: the group `compute`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from atrium.base.errors import ConfigError
from atrium.base.section import Count, Parallel
from atrium.config.machine import LARGE_BATCH_TOKENS
from atrium.config.nearest import shown
from atrium.engines.settings import EngineSettings
from atrium.launch.settings import NodeSettings


class ComputeConfig(NodeSettings):
    """Device, precision, batching and processes."""

    device: Literal["cpu", "cuda"]
    """Device on which the policy is sampled and trained."""
    dtype: Literal["float32", "bfloat16"]
    """Number format of the model's forward pass; log-probabilities and the objective are always float32."""
    head_dtype: Literal["model", "float32"] = "model"
    """Number format in which vLLM and the trainer compute logits: `dtype` (model), or float32. Inputs and
    weights of the LM head are rounded to `dtype` in both cases; with float32, their products are not."""
    residual_dtype: Literal["float32", "model"] = "float32"
    """Number format of the states between layers in a bfloat16 run with one process: float32, or `dtype`
    (model), which vLLM and runs with several processes always use."""
    head_kernel: Literal["torch", "triton"] = "torch"
    """Implementation of the LM head's log-probabilities, entropies and gradients in updates: torch, some
    tokens at a time, or Triton kernels, a slice of the vocabulary at a time, which read logits less often."""
    num_threads: Parallel
    """Number of threads for torch's CPU operations in each process."""
    micro_batch_tokens: Count | Literal["auto"]
    """Maximum number of tokens, including each row's prompt, in one pass of an update; auto chooses a number
    that fits into memory."""
    memory_limit_mb: Annotated[int, Field(ge=64, le=10**9)] | None = None
    """Memory limit in megabytes: on a GPU for the whole run, on a CPU for one pass of an update; null for
    none."""
    packing: bool | Literal["auto"] = "auto"
    """Whether updates pack rows without padding and compute each shared prompt once; false pads rows. auto
    packs if a check at the start finds that packing does not change the model's states."""
    recompute_activations: bool | Literal["auto"] = "auto"
    """Whether updates store only the states between blocks and recompute the rest (gradient checkpointing);
    auto does so if memory is short."""
    compile: bool | Literal["auto"] = False
    """Whether torch compiles the decoder blocks for updates. Compilation takes a minute once; updates then
    run fewer kernels. auto compiles on a GPU if updates are packed and a compiler is installed."""
    gradient_exchange: Literal["micro_batch", "minibatch"] = "micro_batch"
    """How often several processes exchange gradients: with each micro-batch, or once per minibatch, which
    keeps 4 more bytes per parameter on each."""
    flash_attention: Literal[2, 3] = 2
    """Version of FlashAttention in packed updates on a GPU in bfloat16: torch's own 2, or 3, which needs an
    H100 or H200 and the package flash_attn_interface."""
    on_oom: Literal["stop", "shrink"] = "stop"
    """Reaction to running out of memory in an update: end the run, or halve the micro-batches and repeat the
    update."""
    offload: bool = False
    """Whether the optimizer's state and, with several GPUs, the policy's shards are kept in main memory."""
    profile_step: Count | None = None
    """Training step that torch's profiler traces, with the trace in the run directory; null for none."""
    behavior_logprobs: Literal["auto", "engine", "recompute"]
    """Source of the log-probabilities for the anchor `behavior`: the engine, or (recompute) a trainer pass
    with the weights that sampled. auto uses the engine if both give the same values and no part of the method
    compares them."""

    @property
    def max_micro_batch_tokens(self) -> int:
        """The value of `micro_batch_tokens`. For `auto`, this is the largest value to try."""
        return LARGE_BATCH_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @property
    def world_size(self) -> int:
        """The total number of processes of the run on all nodes."""
        return self.num_processes * self.num_nodes

    @property
    def is_launched(self) -> bool:
        """Whether a launcher process starts and monitors the run's processes."""
        return self.world_size > 1 or self.max_restarts > 0


def check_alone(compute: ComputeConfig, what: str) -> None:
    """Raise `ConfigError` if settings for several processes are used with a single-process command.

    `what` is the part of the message that explains why the command runs as one process.
    """
    for key, one in ONE_PROCESS.items():
        if (given := getattr(compute, key)) != one:
            raise ConfigError(
                f"compute.{key} must be {shown(one)}, since {what}, got {shown(given)}; it applies "
                "only to `atrium train`"
            )


ONE_PROCESS: Mapping[str, object] = {
    name: field.default for name, field in NodeSettings.model_fields.items() if name != "timeout_s"
}
"""The settings for several processes, each with its value for a single process without a launcher."""


def check_processes(compute: ComputeConfig, rollout: EngineSettings) -> None:
    """Raise `ConfigError` if the settings for several processes cannot work.

    `rendezvous` must be set if and only if several nodes run without SLURM, and `allow_public_rendezvous`
    requires several nodes. The prompts must be evenly divisible among the processes or, if processes share
    engines (`rollout.tensor_parallel`), among the engines. In the second case, the number of processes per
    node must be a multiple of `rollout.tensor_parallel`.
    """
    if compute.num_nodes > 1 and compute.slurm is None and compute.rendezvous is None:
        raise ConfigError(
            f"compute.rendezvous must be set with compute.num_nodes={compute.num_nodes}; set "
            "compute.rendezvous=HOST:PORT to the name of one of the nodes and a free port there"
        )
    if compute.rendezvous is not None and (compute.num_nodes == 1 or compute.slurm is not None):
        is_single = compute.num_nodes == 1
        why = "a single node needs no rendezvous" if is_single else "a SLURM job chooses its own address"
        raise ConfigError(
            f"compute.rendezvous={compute.rendezvous} has no effect, since {why}; use null"
            + (", or set compute.num_nodes to at least 2" if compute.num_nodes == 1 else "")
        )
    if compute.allow_public_rendezvous and compute.num_nodes == 1:
        raise ConfigError(
            "compute.allow_public_rendezvous=true has no effect, since a single node needs no "
            "rendezvous; use false, or set compute.num_nodes to at least 2"
        )
    num_prompts, shared = rollout.num_prompts, rollout.ranks_per_engine
    if compute.num_processes % shared:
        raise ConfigError(
            f"rollout.tensor_parallel={shared} must divide "
            f"compute.num_processes={compute.num_processes}, since processes that share vLLM must run on "
            f"one node; use {_listed(divisors(compute.num_processes))}, or change compute.num_processes"
        )
    if num_prompts * shared % compute.world_size:
        times = f" times rollout.tensor_parallel={shared}" if shared > 1 else ""
        raise ConfigError(
            f"compute.num_processes={compute.num_processes} times compute.num_nodes={compute.num_nodes} "
            f"must divide rollout.num_prompts={num_prompts}{times}, since prompts are distributed "
            f"evenly; use a total of {_listed(shared * n for n in divisors(num_prompts))} processes"
        )


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
