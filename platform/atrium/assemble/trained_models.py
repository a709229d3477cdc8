"""The policy, what samples it and what updates it: spread over processes, and fit to their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from atrium.assemble.budget import tune_micro_batches
from atrium.assemble.policies import build_engine, build_reference, build_updater, restore_weights
from atrium.assemble.ranks import read_spread, spread
from atrium.assemble.recording import Recorder
from atrium.assemble.watching import fault_handling
from atrium.config.schema import RunConfig
from atrium.models.policy import Policy
from atrium.rollout.engine import Engine
from atrium.rollout.vllm_engine import VllmEngine
from atrium.tracking.run_folder import RunFolder
from atrium.train.checkpoint.checkpoint import Checkpoint
from atrium.train.guard.memory_limit import MemoryLimit
from atrium.train.ranks.ranks import Ranks, Spread
from atrium.train.update.reference import MovingReference
from atrium.train.update.step import PolicyUpdater


@dataclass(frozen=True, kw_only=True)
class TrainedModels:
    """What samples and what is trained, with a checkpoint's weights where there is one."""

    engine: Engine
    reference: MovingReference | None
    spread: Spread
    optimizer_state: Mapping[str, Tensor]


def trained_models(
    config: RunConfig, checkpoint: Checkpoint | None, recorder: Recorder, policy: Policy, ranks: Ranks
) -> TrainedModels:
    """The reference is taken from the first policy, before a checkpoint's weights."""
    reference = build_reference(config, policy)
    if checkpoint is not None and ranks.is_alone:
        restore_weights(policy, checkpoint.policy)
        if reference is not None and checkpoint.reference is not None:
            reference.load(checkpoint.reference)
    recorder.display.phase("starting the engine")
    engine = build_engine(config, policy, shares_model=ranks.is_alone)
    spread_models = spread(config, policy, reference, ranks)
    optimizer_state: Mapping[str, Tensor] = checkpoint.optimizer if checkpoint else {}
    if checkpoint is not None and not ranks.is_alone:
        optimizer_state = read_spread(checkpoint, policy, reference, ranks)
    return TrainedModels(
        engine=engine, reference=reference, spread=spread_models, optimizer_state=optimizer_state
    )


def build_fitting_updater(
    config: RunConfig,
    folder: RunFolder,
    recorder: Recorder,
    policy: Policy,
    models: TrainedModels,
    longest: int,
    ranks: Ranks,
) -> PolicyUpdater:
    """What updates the policy, with micro-batches that fit; `longest` is the longest prompt in tokens."""
    log, limit_mb = recorder.display.message, config.compute.memory_limit_mb
    faults = fault_handling(config, folder if ranks.is_first else None, log)
    updater = build_updater(
        config, policy, models.reference, models.optimizer_state, faults, ranks, models.spread
    )
    if isinstance(models.engine, VllmEngine):
        models.engine.release_memory()  # as it is in updates
    if limit_mb is not None:
        updater = replace(updater, memory_limit=MemoryLimit(config.compute.device, limit_mb))
    longest_row = min(policy.context_length, longest + config.rollout.max_new_tokens)
    return tune_micro_batches(config, updater, folder, longest=longest_row, log=log, ranks=ranks)
