"""From configuration to policies, engines and the updater that trains them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from atrium.assemble.datasets import arithmetic_settings
from atrium.assemble.objective import build_objective
from atrium.assemble.vllm import build_vllm_engine, check_vllm_memory
from atrium.config.models import TinyModelConfig
from atrium.config.rollouts import VllmRolloutConfig
from atrium.config.schema import RunConfig
from atrium.models.policy import Policy, build_random_policy, load_policy
from atrium.models.tiny import TinySettings, build_tokenizer
from atrium.models.warmup import WarmupSettings, warmed_up_policy
from atrium.objective.divergences import StateDivergence
from atrium.objective.regions import Divergence
from atrium.objective.state_divergences import STATE_DIVERGENCES
from atrium.rollout.engine import Engine
from atrium.rollout.transformers_engine import TransformersEngine
from atrium.tracking.terminal import ProgressDisplay
from atrium.train.divergence_meter import DivergenceMeter
from atrium.train.faults import FaultHandling
from atrium.train.flops import peak_flops
from atrium.train.logprobs import PolicyForward
from atrium.train.optimizer import OptimizerSettings, PolicyOptimizer
from atrium.train.out_of_memory import memory_explained
from atrium.train.reference import MovingReference
from atrium.train.step import PolicyUpdater, UpdateSettings

# Measured: 6e-6 at most between float32 engines, 0.014 on average in bfloat16.
_EXACT_MISMATCH, _ROUNDED_MISMATCH = 1e-3, 0.1


@memory_explained("loading the model", "choose a smaller model, or a device with more memory")
def build_policy(
    config: RunConfig, cache_dir: Path, display: ProgressDisplay, *, trains: bool = True
) -> Policy:
    """The policy that training begins with: warmed up, or loaded; without `trains`, only to sample from."""
    model, device = config.model, config.compute.device
    if not isinstance(model, TinyModelConfig):
        check_vllm_memory(config, model, trains=trains)
        if model.weights == "random":
            display.phase("making a random model")
            return build_random_policy(
                model.architecture or {}, tokenizer=build_tokenizer(), seed=model.seed, device=device
            )
        display.phase("loading the model")
        return load_policy(model.source, dtype=torch.float32, device=device, revision=model.revision)
    warmup = WarmupSettings(**model.warmup.model_dump())
    display.phase("warm-up", warmup.num_clean_steps + warmup.num_imperfect_steps)
    return warmed_up_policy(
        TinySettings(**model.model_dump(exclude={"kind", "seed", "warmup", "prompt", "thinking"})),
        warmup,
        arithmetic_settings(config.dataset),
        seed=model.seed,
        cache_dir=cache_dir,
        on_progress=lambda done, total, loss: display.advance(),
        device=device,
    )


def restore_weights(policy: Policy, folder: Path) -> None:
    """Give the policy the weights of a transformers folder."""
    saved = load_policy(folder, dtype=torch.float32, device=policy.model.device)
    policy.model.load_state_dict(saved.model.state_dict())


def own_storage(model: nn.Module) -> None:
    """Move every parameter into memory of its own.

    Loaded parameters may be views of a mapped file, whose alignment decides which kernels run and with
    them the last bits of sums; a resumed run would then differ from an undisturbed one.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


def build_engine(config: RunConfig, policy: Policy) -> Engine:
    """The engine that samples from the policy."""
    if isinstance(config.rollout, VllmRolloutConfig):
        return build_vllm_engine(config, config.rollout, policy)
    return TransformersEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        pad_token_id=policy.pad_token_id,
        context_length=policy.context_length,
        max_batch_tokens=config.rollout.max_batch_tokens,
    )


def mismatch_bound(config: RunConfig) -> float | None:
    """The mean difference of engine and trainer, in nats, at which a run ends; None for no bound."""
    bound = config.rollout.max_mismatch
    if bound != "auto":
        return bound
    if config.rollout.engine == "bank":
        return None
    return _EXACT_MISMATCH if config.compute.dtype == "float32" else _ROUNDED_MISMATCH


def build_reference(config: RunConfig, policy: Policy) -> MovingReference | None:
    """A copy of the policy as it is now, where the objective has a reference."""
    reference = config.algorithm.reference
    if reference.kind == "none":
        return None
    model = copy.deepcopy(policy.model).requires_grad_(False)
    return MovingReference(model=model, moves=reference.kind != "frozen")


def build_updater(
    config: RunConfig,
    policy: Policy,
    reference: MovingReference | None,
    optimizer_state: Mapping[str, Tensor],
    faults: FaultHandling,
) -> PolicyUpdater:
    """Objective, forward passes and optimiser; an empty state begins a new optimiser."""
    settings, compute = config.optimizer, config.compute
    objective = build_objective(config.algorithm, config.divergence, config.regularizer)
    forward = _forward(config, policy.model, _divergence_meter(objective.divergence))
    forward.check([policy.pad_token_id, *policy.stop_token_ids])
    optimizer = PolicyOptimizer(
        policy.model,
        OptimizerSettings(
            **settings.model_dump(exclude={"kind", "num_minibatches", "num_epochs", "max_skipped_updates"}),
            num_steps=config.num_steps,
        ),
    )
    optimizer.load_state(optimizer_state)
    # Completions from before the last update are as stored ones: their ratios begin anywhere.
    reads_stored = config.rollout.engine == "bank" or config.rollout.lag > 0
    exact_engine = compute.dtype == "float32" and config.rollout.engine in ("transformers", "vllm")
    takes_engine = config.anchors_to_stored if reads_stored else exact_engine
    behavior = compute.behavior_logprobs
    return PolicyUpdater(
        objective=objective,
        forward=forward,
        optimizer=optimizer,
        settings=UpdateSettings(
            num_minibatches=settings.num_minibatches,
            num_epochs=settings.num_epochs,
            micro_batch_tokens=compute.micro_batch_tokens,
            behavior_logprobs=("engine" if takes_engine else "recompute") if behavior == "auto" else behavior,
            seed=config.seed,
            reads_stored=reads_stored,
            shrinks=compute.on_oom == "shrink",
            peak_flops=_peak_flops(compute.device, compute.dtype),
        ),
        faults=faults,
        reference_forward=None if reference is None else _forward(config, reference.model),
    )


def _peak_flops(device: str, dtype: str) -> float | None:
    return peak_flops(torch.cuda.get_device_name(), dtype) if device == "cuda" else None


def _divergence_meter(divergence: Divergence) -> DivergenceMeter | None:
    if not isinstance(divergence, StateDivergence):
        return None
    return DivergenceMeter(STATE_DIVERGENCES[divergence.measure], divergence.top_k)


def _forward(config: RunConfig, model: nn.Module, meter: DivergenceMeter | None = None) -> PolicyForward:
    return PolicyForward(
        model,
        meter=meter,
        temperature=config.rollout.temperature,
        autocast_dtype=torch.bfloat16 if config.compute.dtype == "bfloat16" else None,
        packing=config.compute.packing,
    )
