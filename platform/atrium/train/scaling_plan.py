"""What a step costs on many GPUs, from shapes and data sheets: memory, time and traffic of one of them.

Nothing here is measured. Memory is that of `memory_plan`. Times are operations or bytes divided by what a
data sheet states, with one assumption: matrix products reach `Hardware.efficiency` of their peak. Latencies,
imbalance and grading are left out, so real steps are longer; ratios between settings are what it is for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atrium.train.flops import ModelFlops
from atrium.train.memory_plan import (
    MemorySettings,
    ModelDimensions,
    Phase,
    block_parameters,
    cache_bytes_per_token,
    peak_by_phase,
    plan_memory,
)

_BFLOAT16, _FLOAT32 = 2, 4
_ENGINE_GPUS = (1, 2, 4, 8)
"""Over how many GPUs an engine may be spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A GPU and its connections. Bandwidths in bytes/s are those of one GPU in one direction.

    `usable_frac` of `memory_bytes` is planned with; the rest is for libraries and fragmentation.
    """

    name: str
    peak_flops: float
    memory_bytes: int
    memory_bandwidth: float
    node_bandwidth: float
    network_bandwidth: float
    gpus_per_node: int = 8
    efficiency: float = 0.4
    usable_frac: float = 0.9

    def link(self, num_gpus: int) -> float:
        """The bandwidth of the slowest connection among so many GPUs."""
        return self.node_bandwidth if num_gpus <= self.gpus_per_node else self.network_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The rollouts of a step, all of one length, and how they are computed.

    `num_forward_passes` are those without a gradient: a behavior pass, a reference pass.
    """

    num_prompts: int
    group_size: int
    num_prompt_tokens: int
    num_completion_tokens: int
    micro_batch_tokens: int
    num_epochs: int = 1
    num_forward_passes: int = 1

    @property
    def num_rows(self) -> int:
        """Completions of a step."""
        return self.num_prompts * self.group_size

    @property
    def row_tokens(self) -> int:
        """Tokens of a completion with its prompt."""
        return self.num_prompt_tokens + self.num_completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One of `num_gpus` in one step: bytes in memory, bytes received, seconds.

    `sampling_s` is infinite where the engine has no room for a single row. `exchange_s` runs beside
    `update_s`; the longer one counts. `recomputes` says whether updates compute activations again, and
    `tensor_parallel` over how many GPUs an engine is spread, which decodes `num_concurrent_rows` at once.
    """

    num_gpus: int
    tensor_parallel: int
    recomputes: bool
    sampling_bytes: int
    update_bytes: int
    exchanged_bytes: float
    synced_bytes: float
    sampling_s: float
    update_s: float
    exchange_s: float
    sync_s: float
    num_concurrent_rows: int

    @property
    def step_s(self) -> float:
        """The step: sampling, the update or its exchange, and handing the weights to the engine."""
        return self.sampling_s + max(self.update_s, self.exchange_s) + self.sync_s

    def fits(self, hardware: Hardware) -> bool:
        """Whether both phases have the memory they need."""
        usable = hardware.usable_frac * hardware.memory_bytes
        return math.isfinite(self.sampling_s) and max(self.sampling_bytes, self.update_bytes) <= usable

    def shares(self) -> Mapping[str, float]:
        """The share of each phase in the step."""
        slower = "exchange" if self.exchange_s > self.update_s else "update"
        parts = {
            "sampling": self.sampling_s,
            slower: max(self.update_s, self.exchange_s),
            "weights to the engine": self.sync_s,
        }
        return {name: seconds / self.step_s for name, seconds in parts.items()}


def fitting_plan(model: ModelDimensions, work: Workload, hardware: Hardware, num_gpus: int) -> StepPlan:
    """The plan with engines over as few GPUs of a node as fit; with whole engines where nothing does."""
    sizes = [size for size in _ENGINE_GPUS if num_gpus % size == 0 and size <= hardware.gpus_per_node]
    plans = [plan_step(model, work, hardware, num_gpus, tensor_parallel=size) for size in sizes]
    return next((plan for plan in plans if plan.fits(hardware)), plans[0])


def plan_step(
    model: ModelDimensions,
    work: Workload,
    hardware: Hardware,
    num_gpus: int,
    *,
    offload: bool = False,
    tensor_parallel: int = 1,
) -> StepPlan:
    """The plan of one GPU of `num_gpus`, with bfloat16 engines that are empty during updates.

    Activations are computed again where an update would not fit otherwise.
    """
    kept, again = (
        _peaks(model, work, num_gpus, offload=offload, recomputes=both, tensor_parallel=tensor_parallel)
        for both in (False, True)
    )
    usable = hardware.usable_frac * hardware.memory_bytes
    recomputes = _update_bytes(kept) > usable
    peaks = again if recomputes else kept
    rows = math.ceil(work.num_rows * tensor_parallel / num_gpus)
    room = usable - peaks[Phase.SAMPLING]
    per_row = _cache_bytes(model) * work.row_tokens / tensor_parallel
    concurrent = min(rows, int(max(room, 0.0) // per_row))
    exchanged = exchanged_bytes(model, work, num_gpus)
    synced = _FLOAT32 * model.num_parameters * _others(num_gpus)
    flops = update_flops(model, work, recomputes=recomputes)
    sampling_s = _sampling_s(model, work, hardware, rows=rows, concurrent=concurrent) / tensor_parallel
    return StepPlan(
        num_gpus=num_gpus,
        tensor_parallel=tensor_parallel,
        recomputes=recomputes,
        sampling_bytes=int(peaks[Phase.SAMPLING] + concurrent * per_row),
        update_bytes=_update_bytes(peaks),
        exchanged_bytes=exchanged,
        synced_bytes=synced,
        sampling_s=sampling_s,
        update_s=flops / (num_gpus * hardware.peak_flops * hardware.efficiency),
        exchange_s=exchanged / hardware.link(num_gpus),
        sync_s=synced / hardware.link(num_gpus)
        + _BFLOAT16 * model.num_parameters / tensor_parallel / hardware.memory_bandwidth,
        num_concurrent_rows=concurrent,
    )


def _peaks(
    model: ModelDimensions,
    work: Workload,
    num_gpus: int,
    *,
    offload: bool,
    recomputes: bool,
    tensor_parallel: int,
) -> Mapping[Phase, int]:
    settings = MemorySettings(
        compute_dtype="bfloat16",
        micro_batch_tokens=max(work.micro_batch_tokens, work.row_tokens),
        batch_tokens=work.num_rows * work.row_tokens,
        cache_tokens=0,
        engine_bytes=_BFLOAT16 * model.num_parameters // tensor_parallel,
        engine_sleeps=True,
        num_ranks=num_gpus,
        offload=offload,
        recomputes=recomputes,
    )
    return peak_by_phase(plan_memory(model, settings))


def _update_bytes(peaks: Mapping[Phase, int]) -> int:
    return max(peaks[Phase.UPDATE], peaks[Phase.OPTIMIZER])


def update_flops(model: ModelDimensions, work: Workload, *, recomputes: bool = False) -> float:
    """Operations of a step's update on all GPUs: passes with a gradient, and those without, a third each.

    With `recomputes`, a pass with a gradient computes its forward pass twice.
    """
    weights = model.num_layers * block_parameters(model)
    head = model.vocabulary_size * model.hidden_size
    flops = ModelFlops(
        num_layer_weights=weights,
        num_head_weights=head,
        num_layers=model.num_layers,
        attention_width=model.num_heads * model.head_size,
    ).of_update(
        np.full(work.num_rows, work.num_prompt_tokens),
        np.full(work.num_rows, work.row_tokens),
        np.arange(work.num_rows) // work.group_size,
    )
    with_gradient = work.num_epochs * (4 / 3 if recomputes else 1)
    return flops * (with_gradient + work.num_forward_passes / 3)


def num_micro_batches(work: Workload, num_gpus: int) -> int:
    """Forward and backward passes of one GPU in a pass over its share of the rollouts."""
    tokens = work.num_rows * work.row_tokens / num_gpus
    return math.ceil(tokens / max(work.micro_batch_tokens, work.row_tokens))


def exchanged_bytes(model: ModelDimensions, work: Workload, num_gpus: int) -> float:
    """Bytes that one GPU receives in a step's update.

    FSDP2 gathers bfloat16 weights for every forward and for every backward pass, and adds gradients up in
    float32 after each backward pass.
    """
    per_pass = _BFLOAT16 * model.num_parameters
    with_gradient = work.num_epochs * (2 * per_pass + _FLOAT32 * model.num_parameters)
    without = work.num_forward_passes * per_pass
    return num_micro_batches(work, num_gpus) * (with_gradient + without) * _others(num_gpus)


def needed_bandwidth(plan: StepPlan) -> float:
    """Bytes/s at which a GPU has to receive for the exchange to take no longer than the update's products."""
    return plan.exchanged_bytes / plan.update_s


def _sampling_s(
    model: ModelDimensions, work: Workload, hardware: Hardware, *, rows: int, concurrent: int
) -> float:
    """Decoding of an engine's rows on one GPU: a token reads the weights once, and each row's own cache."""
    if concurrent == 0:
        return math.inf
    num_tokens = max(rows / concurrent, 1.0) * work.num_completion_tokens
    cache = concurrent * _cache_bytes(model) * (work.num_prompt_tokens + work.num_completion_tokens / 2)
    read_s = (_BFLOAT16 * model.num_parameters + cache) / hardware.memory_bandwidth
    weights = model.num_layers * block_parameters(model) + model.vocabulary_size * model.hidden_size
    computed_s = 2.0 * weights * concurrent / (hardware.peak_flops * hardware.efficiency)
    return num_tokens * max(read_s, computed_s)


def _cache_bytes(model: ModelDimensions) -> float:
    """Keys and values of one token, in bfloat16 as vLLM keeps them."""
    return cache_bytes_per_token(model) * _BFLOAT16 / _FLOAT32


def _others(num_gpus: int) -> float:
    """The share of what all GPUs hold together that lies on other ones."""
    return (num_gpus - 1) / num_gpus


H100 = Hardware(
    name="H100 SXM",
    peak_flops=989e12,
    memory_bytes=80 * 10**9,
    memory_bandwidth=3.35e12,
    node_bandwidth=450e9,
    network_bandwidth=50e9,
)
H200 = Hardware(
    name="H200",
    peak_flops=989e12,
    memory_bytes=141 * 10**9,
    memory_bandwidth=4.8e12,
    node_bandwidth=450e9,
    network_bandwidth=50e9,
)
"""NVIDIA's data sheets: dense bfloat16, NVLink in one direction; a 400 Gbit/s adapter for each GPU."""
