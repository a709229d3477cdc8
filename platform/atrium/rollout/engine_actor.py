"""Engines as actors of a Ray cluster that this process has joined.

Ray places them, moves their messages and weights, and ends them with the process that started them. Weights
reach each machine once, through Ray's object store, where its engines read them in place.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from atrium.errors import EngineError
from atrium.rollout.engine_worker import EngineStart, EngineWorker, Question, Reply, Take
from atrium.rollout.placed_engine import PlacedEngine
from atrium.rollout.shared_weights import Memory, SharedWeights

_PLACE_TIMEOUT_S = 60.0


class EngineActors:
    """Starts engines where Ray has room for them, spread over its machines.

    Parameters
    ----------
    start
        What each begins with.
    weights
        What they sample with.
    num_engines
        How many there are at a time.
    needs
        What each takes of a machine, under Ray's names: `CPU` and `GPU`.
    timeout_s
        How long one that is asked something may say nothing, before it is taken for hanging.
    """

    def __init__(
        self,
        start: EngineStart,
        weights: SharedWeights,
        *,
        num_engines: int,
        needs: Mapping[str, float],
        timeout_s: float,
    ) -> None:
        self.num_engines = num_engines
        self._start = start
        self._weights = weights
        self._needs = needs
        self._timeout_s = timeout_s
        self._group = placement_group([dict(needs)] * num_engines, strategy="SPREAD")
        if not self._group.wait(_PLACE_TIMEOUT_S):
            free = {name: ray.available_resources().get(name, 0.0) for name in needs}
            self.close()
            raise EngineError(
                f"rollout.num_engines={num_engines}: Ray found no room within {_PLACE_TIMEOUT_S:g} s for "
                f"engines that take {_amounts(needs)} each; free in the cluster are {_amounts(free)}"
            )
        self._stored = self._put()

    def start(self, number: int) -> EngineActor:
        """A new engine of this number, which is asked its start already."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        kind = ray.remote(
            num_cpus=self._needs.get("CPU", 0.0),
            num_gpus=self._needs.get("GPU", 0.0),
            scheduling_strategy=strategy,
        )(Answering)
        engine = EngineActor(number, kind.remote(), lambda: self._stored, timeout_s=self._timeout_s)
        engine.ask(self._start)
        return engine

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Put them into Ray's object store; those before go when no engine reads them any more."""
        self._weights.write(weights)
        self._stored = self._put()

    def wait(self, engines: Sequence[EngineActor], timeout_s: float) -> list[EngineActor]:
        """Those that say something, or are gone, as soon as there is one; none after `timeout_s` seconds."""
        asked = [engine for engine in engines if engine.is_busy]
        ready, _ = ray.wait([engine.replies for engine in asked], timeout=timeout_s)
        return [engine for engine in asked if engine.replies in ready]

    def close(self) -> None:
        """Give the place back, and leave the cluster."""
        remove_placement_group(self._group)
        self._weights.close()
        ray.shutdown()

    def _put(self) -> ray.ObjectRef:
        return ray.put(np.frombuffer(self._weights.memory, np.uint8))


class EngineActor(PlacedEngine):
    """One engine that is an actor; `replies` are those to what it was asked last."""

    def __init__(
        self,
        number: int,
        actor: ray.actor.ActorHandle,
        weights: Callable[[], ray.ObjectRef],
        *,
        timeout_s: float,
    ) -> None:
        super().__init__(number, timeout_s=timeout_s)
        self.replies: Any = None
        self._actor = actor
        self._weights = weights

    @property
    def printed(self) -> str:
        """Ray's own logs."""
        return f"worker-*-{self.pid or '*'}.err in Ray's logs on the machine that it was on"

    def end(self) -> None:
        """Kill the actor, which has nothing to lose. Harmless when called twice."""
        ray.kill(self._actor)

    def _send(self, question: Question) -> None:
        memory = self._weights() if isinstance(question, Take) else None
        self.replies = self._actor.replies.options(num_returns="streaming").remote(question, memory)

    def _next(self) -> Reply:
        try:
            reply: Reply = ray.get(next(self.replies), timeout=self.timeout_s)
        except (ray.exceptions.RayError, StopIteration) as error:
            if isinstance(error, ray.exceptions.RayTaskError):  # a defect, not a loss
                raise
            raise EOFError(str(error)) from error
        return reply


class Answering:
    """What runs on the cluster. Ray does not restart it: whoever asked it starts another with its weights."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends us
        self._worker = EngineWorker()

    def replies(self, question: Question, memory: Memory | None) -> Iterator[Reply]:
        """As `EngineWorker` says."""
        yield from self._worker.replies(question, memory)


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
