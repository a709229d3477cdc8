"""Where a run's engines live: inside the trainer's process, in processes beside it, or on a Ray cluster.

An engine elsewhere is built there by `build_engine`, as inside, on a policy of the same shape that is given
its weights.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from atrium import plugins
from atrium.assemble.cluster import join_cluster
from atrium.assemble.engines import build_engine
from atrium.assemble.memory import reads_rounded_weights
from atrium.assemble.servers import build_server_engine
from atrium.config.machine import visible_gpus
from atrium.config.schema import RunConfig
from atrium.errors import ConfigError
from atrium.models.context import Context
from atrium.models.policy import Policy
from atrium.rollout.dealt_engine import DealtEngine
from atrium.rollout.engine import Engine
from atrium.rollout.engine_process import EngineProcesses, preload
from atrium.rollout.engine_worker import EngineStart
from atrium.rollout.placed_engine import EnginePlace
from atrium.rollout.settings import VllmSettings
from atrium.rollout.shared_weights import SharedWeights
from atrium.rollout.vllm_transfer import NcclSender
from atrium.train.guard.memory import keep_freed_memory
from atrium.train.ranks.ranks import SINGLE, Ranks


def build_placed_engine(
    config: RunConfig,
    policy: Policy,
    logs: Path,
    log: Callable[[str], None],
    ranks: Ranks = SINGLE,
) -> Engine:
    """The engine where `rollout.placement` has it, or all that are this process's as one, with its weights.

    One inside the only process of a run samples from the policy's very module where it can. What processes
    of their own print is kept in files in `logs`.
    """
    if config.rollout.placement == "inside":
        return build_engine(config.rollout, config, policy, shares_model=ranks.is_alone)
    logs = logs if ranks.is_alone else logs / f"rank-{ranks.rank}"
    if config.rollout.placement == "server":
        devices = () if config.rollout.servers else engine_devices(config, ranks)
        return build_server_engine(config, policy, logs, log, ranks, devices)
    return _dealt(config, policy, logs, log, ranks)


def _dealt(
    config: RunConfig, policy: Policy, logs: Path, log: Callable[[str], None], ranks: Ranks
) -> DealtEngine[Any]:
    """The engines outside that this process has for itself, as one."""
    rollout = config.rollout
    rounded = torch.bfloat16 if reads_rounded_weights(config) else None
    weights = SharedWeights(policy.weights(), rounded)
    start = EngineStart(
        build=pickle.dumps(partial(_built, config, _Skeleton.of(policy))),
        plugins=tuple(str(plugin.path) for plugin in plugins.loaded() if plugin.path),
        places=weights.places,
        device=config.compute.device,
        is_afar=rollout.sends_weights_afar,
    )
    place = (
        _on_cluster(config, start, weights, rollout.num_engines // ranks.size)
        if rollout.placement == "cluster"
        else _beside(config, start, weights, logs, ranks)
    )
    return DealtEngine(
        place,
        unit_samples=rollout.unit_samples_at_once,
        context_length=policy.context_length,
        log=log,
        sender=_sender(config, weights, rollout.num_engines // ranks.size),
    )


def _sender(config: RunConfig, weights: SharedWeights, num_engines: int) -> NcclSender | None:
    """What sends weights to this process's engines; None where they read them in memory."""
    rollout = config.rollout
    if not isinstance(rollout, VllmSettings) or not rollout.sends_weights:
        return None
    rollout.prepare_environment(config.compute.device, Path(config.runs_dir) / ".cache")
    # For other machines NCCL has to listen on the network.
    if config.compute.num_nodes == 1 and not rollout.sends_weights_afar:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    return NcclSender(
        weights.places,
        num_engines=num_engines,
        num_processes=rollout.processes_per_engine,
        timeout_s=rollout.step_timeout_s,
    )


def _beside(
    config: RunConfig, start: EngineStart, weights: SharedWeights, logs: Path, ranks: Ranks
) -> EnginePlace[Any]:
    """Processes of this machine."""
    # Plugins come before all that reads settings, in the engines' processes as here.
    preload(*(() if plugins.loaded() else (__name__,)))
    logs.mkdir(parents=True, exist_ok=True)
    return EngineProcesses(
        start,
        weights,
        devices=engine_devices(config, ranks),
        logs=logs.absolute(),
        timeout_s=config.rollout.engine_timeout_s,
    )


def _on_cluster(
    config: RunConfig, start: EngineStart, weights: SharedWeights, num_engines: int
) -> EnginePlace[Any]:
    """Actors of a Ray cluster."""
    rollout, compute = config.rollout, config.compute
    join_cluster(rollout)
    from atrium.rollout.engine_actor import EngineActors  # Ray is an extra

    on_gpu = {"CPU": 1, "GPU": 1}
    return EngineActors(
        start,
        weights,
        num_engines=num_engines,
        num_processes=rollout.processes_per_engine,
        needs=on_gpu if compute.device == "cuda" else {"CPU": compute.num_threads},
        timeout_s=rollout.engine_timeout_s,
    )


def engine_devices(config: RunConfig, ranks: Ranks) -> tuple[tuple[str | None, ...], ...]:
    """A GPU for each process of each engine of this rank's, by its visible name; None for no choice."""
    rollout, gpus = config.rollout, visible_gpus()
    num_engines, num_each = rollout.num_outside // ranks.size, rollout.processes_per_engine
    if config.compute.device != "cuda":
        return ((None,) * num_each,) * num_engines
    num_own, first = num_engines * num_each, ranks.local_size
    chosen = rollout.devices or tuple(range(first, first + ranks.local_size * num_own))
    if max(chosen) >= len(gpus):
        name = "num_servers" if rollout.placement == "server" else "num_engines"
        raise ConfigError(
            f"rollout.{name}={rollout.num_outside}: engines beside the trainer would have the GPUs "
            f"{', '.join(map(str, chosen))}, and {len(gpus)} are there, of which the trainer has the first "
            f"{first}; name others with rollout.devices, or choose rollout.placement=inside"
        )
    own = [gpus[place] for place in chosen[ranks.local_rank * num_own :][:num_own]]
    return tuple(tuple(own[number * num_each :][:num_each]) for number in range(num_engines))


@dataclass(frozen=True, kw_only=True)
class _Skeleton:
    """A policy without its weights."""

    model_type: type[PreTrainedModel]
    config: object
    dtype: torch.dtype
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    context: Context

    @classmethod
    def of(cls, policy: Policy) -> _Skeleton:
        return cls(
            model_type=type(policy.model),
            config=policy.model.config,
            dtype=policy.model.dtype,
            tokenizer=policy.tokenizer,
            stop_token_ids=policy.stop_token_ids,
            pad_token_id=policy.pad_token_id,
            context=policy.context,
        )

    def policy(self, device: str) -> Policy:
        """A policy with any weights. Its parameters ask for gradients, as those of every policy."""
        with no_init_weights():
            model = self.model_type(self.config)
        model.tie_weights()
        for parameter in model.parameters():  # buffers, such as the frequencies of rotations, stay float32
            parameter.data = parameter.data.to(self.dtype)
        return Policy(
            model=model.to(device).eval(),
            tokenizer=self.tokenizer,
            stop_token_ids=self.stop_token_ids,
            pad_token_id=self.pad_token_id,
            context=self.context,
        )


def _built(config: RunConfig, skeleton: _Skeleton) -> Engine:
    """The engine, in its own process."""
    torch.set_num_threads(config.compute.num_threads)
    if config.compute.device == "cpu":
        keep_freed_memory()
    # vLLM has weights of its own, and reads shapes only.
    device = "cpu" if config.rollout.has_own_weights else config.compute.device
    return build_engine(config.rollout, config, skeleton.policy(device))
