"""Functions that build the policy, the reference model and the updater from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from atrium.assemble.datasets import arithmetic_settings
from atrium.assemble.engines import check_model
from atrium.base.errors import CheckpointError
from atrium.config.schema import RunConfig
from atrium.method.checks import compares_numerics
from atrium.method.objective import Objective
from atrium.models.lora import (
    ADAPTER_FOLDER,
    add_lora,
    has_lora,
    plain_copy,
    plain_parameters,
    read_adapter,
)
from atrium.models.policy import Policy, build_random_policy, load_policy
from atrium.models.settings import HubModelSettings, TinyModelSettings
from atrium.models.shards import local_tensor
from atrium.models.tiny import build_tokenizer
from atrium.models.warmup import warmed_up_policy
from atrium.planning.devices import peak_flops
from atrium.runs.listener import Listener
from atrium.train.guard.faults import FaultHandling
from atrium.train.guard.out_of_memory import memory_explained
from atrium.train.ranks.ranks import SINGLE, UNSHARDED, Ranks, Shards
from atrium.train.update.compiled_blocks import CompiledBlocks
from atrium.train.update.divergence_meter import DivergenceMeter, meter_of
from atrium.train.update.flash_attention import use_flash_attention_3
from atrium.train.update.forward import PolicyForward
from atrium.train.update.half_stream import keep_stream_half
from atrium.train.update.optimizer import PolicyOptimizer
from atrium.train.update.reference import MovingReference, UnadaptedForward
from atrium.train.update.update import UpdateSettings
from atrium.train.update.updater import PolicyUpdater

if TYPE_CHECKING:  # a run with one process does not import torch.distributed
    from atrium.train.ranks.sharding import ShardedModel

# Tolerance: products of adapter matrices differ in their last bits between machines.
_SAME_BASE = 1e-4


@memory_explained("loading the model", "choose a smaller model, or a device with more memory")
def build_policy(
    config: RunConfig,
    cache_dir: Path,
    listener: Listener,
    *,
    trains: bool = True,
    device: str | None = None,
) -> Policy:
    """Build the initial policy: the tiny model after its warm-up, a random model, or a loaded model.

    If `trains` is false, the policy is only used for sampling: it gets no adapters, and a pretrained model is
    loaded in the number format of the computation. `device` defaults to `compute.device`.
    """
    device = device or config.compute.device
    policy = _build_policy(config, cache_dir, listener, trains=trains, device=device)
    if trains and config.model.lora is not None:
        source = config.model.source if isinstance(config.model, HubModelSettings) else None
        add_lora(policy.model, config.model.lora, seed=config.model_seed, source=source)
    if trains and config.optimizer.kind == "adamw_bf16":
        for parameter in policy.model.parameters():  # not buffers, such as rotary frequencies
            parameter.data = parameter.data.to(torch.bfloat16)
    return policy


def _build_policy(
    config: RunConfig, cache_dir: Path, listener: Listener, *, trains: bool, device: str
) -> Policy:
    model = config.model
    if not isinstance(model, TinyModelSettings):
        check_model(config, trains=trains)
        if model.weights == "random":
            listener.phase("creating a random model")
            return build_random_policy(
                model.architecture or {}, tokenizer=build_tokenizer(), seed=config.model_seed, device=device
            )
        listener.phase("loading the model")
        is_rounded = not trains and config.compute.dtype == "bfloat16"
        dtype = torch.bfloat16 if is_rounded else torch.float32
        return load_policy(model.source, dtype=dtype, device=device, revision=model.revision)
    listener.phase("warm-up", model.warmup.num_steps)
    return warmed_up_policy(
        model,
        model.warmup,
        arithmetic_settings(config.dataset),
        seed=config.model_seed,
        cache_dir=cache_dir,
        on_progress=lambda done, total, loss: listener.advance(),
        device=device,
    )


def restore_weights(policy: Policy, folder: Path) -> None:
    """Load the weights of a checkpoint into the policy.

    `folder` contains the weights in transformers format. If the policy has adapters, only the adapters are
    loaded. Raises `CheckpointError` if the adapters were trained with another base model.
    """
    saved = load_policy(folder, dtype=torch.float32, device=policy.model.device)
    if not has_lora(policy.model):
        policy.model.load_state_dict(saved.model.state_dict())
        return
    read_adapter(policy.model, folder / ADAPTER_FOLDER)
    check_base(policy.model, saved.model.state_dict(), folder)


def check_base(model: PreTrainedModel, stored: Mapping[str, Tensor], folder: Path) -> None:
    """Raise `CheckpointError` if the model's weights, with merged adapters, differ from those in `stored`.

    `folder` is the checkpoint's folder, which the error names.
    """
    for name, weight in plain_parameters(model).items():
        pair = local_tensor(weight), local_tensor(stored[name])
        if not torch.allclose(*pair, rtol=_SAME_BASE, atol=_SAME_BASE):
            raise CheckpointError(
                f"the adapters in {folder} were trained with another model than model.source ({name} "
                "differs); set model.revision to the commit that they were trained with"
            )


def copy_out_of_mmap(model: nn.Module) -> None:
    """Copy every parameter into newly allocated memory.

    Loaded parameters may be views of a memory-mapped file. The file's alignment affects the choice of kernels
    and therefore the last bits of sums, so without the copy, a resumed run would differ from an uninterrupted
    one.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


def build_reference(config: RunConfig, policy: Policy) -> MovingReference | None:
    """Copy the current policy as the reference, or return None if no copy is needed.

    No copy is needed if the method has no reference, or if the reference is frozen and the policy has
    adapters: the reference is then the policy without its adapters.
    """
    reference = config.algorithm.reference
    if reference.kind == "none" or _is_base_reference(config, policy):
        return None
    model = plain_copy(policy.model).requires_grad_(False)
    return MovingReference(model=model, moves=reference.kind != "frozen")


def _is_base_reference(config: RunConfig, policy: Policy) -> bool:
    return config.algorithm.reference.kind == "frozen" and has_lora(policy.model)


def build_updater(
    config: RunConfig,
    policy: Policy,
    reference: MovingReference | None,
    optimizer_state: Mapping[str, Tensor],
    faults: FaultHandling,
    ranks: Ranks = SINGLE,
    shards: Shards = UNSHARDED,
) -> PolicyUpdater:
    """Build the updater: objective, forward passes and optimizer.

    An empty `optimizer_state` starts a new optimizer. With several `ranks`, the models are already sharded
    and `shards` describes them.
    """
    settings, compute = config.optimizer, config.compute
    objective = Objective(config.method)
    forward = build_forward(config, policy.model, meter_of(config.divergence), sharded=shards.policy)
    optimizer = PolicyOptimizer(
        policy.model,
        settings,
        num_steps=config.num_steps,
        offload=compute.offload and ranks.is_alone,  # shards of several ranks are already offloaded
    )
    optimizer.load_state(optimizer_state)
    return PolicyUpdater(
        objective=objective,
        forward=forward,
        optimizer=optimizer,
        settings=UpdateSettings(
            num_minibatches=settings.num_minibatches,
            num_epochs=settings.num_epochs,
            micro_batch_tokens=compute.max_micro_batch_tokens,
            behavior_logprobs=_behavior_logprobs(config),
            seed=config.seed,
            is_stale=config.use.is_stale,
            shrinks=compute.on_oom == "shrink",
            peak_flops=_peak_flops(compute.device, compute.dtype, ranks.size),
        ),
        faults=faults,
        reference_forward=_reference_forward(config, policy, reference, shards),
        ranks=ranks,
        direct_token_id=config.model.direct_token_id,
    )


def _behavior_logprobs(config: RunConfig) -> Literal["engine", "recompute"]:
    """Return the source of the behavior policy's log-probabilities: the engine, or a pass of the trainer.

    With `auto`, the engine's log-probabilities are used in two cases: (a) computation is in float32 and no
    part of the method compares engine and trainer, or (b) rollouts are stored or sampled continuously, so
    that no single version of the weights sampled a completion. Otherwise, the trainer recomputes the
    log-probabilities.
    """
    if config.compute.behavior_logprobs != "auto":
        return config.compute.behavior_logprobs
    is_exact = config.compute.dtype == "float32" and compares_numerics(config.algorithm, config.use) is None
    has_no_weights = config.rollout.reads_stored or config.rollout.continuous
    return "engine" if is_exact or has_no_weights else "recompute"


def _reference_forward(
    config: RunConfig, policy: Policy, reference: MovingReference | None, shards: Shards
) -> PolicyForward | None:
    if _is_base_reference(config, policy):
        return build_forward(config, policy.model, kind=UnadaptedForward, sharded=shards.policy)
    return None if reference is None else build_forward(config, reference.model, sharded=shards.reference)


def _peak_flops(device: str, dtype: str, num_devices: int) -> float | None:
    """Return the peak floating-point operations per second of `num_devices` devices, or None if unknown."""
    peak = peak_flops(torch.cuda.get_device_name(), dtype) if device == "cuda" else None
    return None if peak is None else peak * num_devices


def build_forward(
    config: RunConfig,
    model: nn.Module,
    meter: DivergenceMeter | None = None,
    kind: type[PolicyForward] = PolicyForward,
    sharded: ShardedModel | None = None,
) -> PolicyForward:
    """Build the forward pass of training, packed unless `compute.packing` is false.

    `meter` measures the divergence, `kind` is the class of the pass, and `sharded` is the sharded model of a
    run with several ranks.
    """
    if config.compute.flash_attention == 3:
        use_flash_attention_3()
    is_half = config.compute.dtype == "bfloat16" and sharded is None  # shards are gathered in bfloat16
    if is_half and config.compute.residual_dtype == "model":
        keep_stream_half(model)
    return kind(
        model,
        meter=meter,
        temperature=config.rollout.temperature,
        sharded=sharded,
        autocast_dtype=torch.bfloat16 if is_half else None,
        packing=config.compute.packing is not False,
        recomputes=config.compute.recompute_activations is True,
        float32_logits=config.compute.head_dtype == "float32",
        head_kernel=config.compute.head_kernel,
        compiled=CompiledBlocks(model) if config.compute.compile is True else None,
    )
