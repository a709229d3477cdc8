"""Engines as actors of a Ray cluster that this process has joined.

Ray places them, moves their messages and weights, and ends them with the process that started them. Weights
reach each machine once, through Ray's object store, where its engines read them in place.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from atrium.errors import EngineError
from atrium.rollout.engine_member import Member, meeting_memory
from atrium.rollout.engine_worker import Done, EngineStart, EngineWorker, Failed, Question, Reply, Take
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
    num_engines, num_processes
        How many there are at a time, and of how many actors, on one machine, each consists.
    needs
        What each of these takes of a machine, under Ray's names: `CPU` and `GPU`.
    timeout_s
        How long one that is asked something may say nothing, before it is taken for hanging.
    """

    def __init__(
        self,
        start: EngineStart,
        weights: SharedWeights,
        *,
        num_engines: int,
        num_processes: int,
        needs: Mapping[str, float],
        timeout_s: float,
    ) -> None:
        self.num_engines = num_engines
        self._start = start
        self._weights = weights
        self._num_processes = num_processes
        self._needs = needs
        self._timeout_s = timeout_s
        bundle = {name: amount * num_processes for name, amount in needs.items()}
        self._group = placement_group([bundle] * num_engines, strategy="SPREAD")
        if not self._group.wait(_PLACE_TIMEOUT_S):
            free = {name: ray.available_resources().get(name, 0.0) for name in needs}
            self.close()
            raise EngineError(
                f"rollout.num_engines={num_engines}: Ray found no room within {_PLACE_TIMEOUT_S:g} s for "
                f"engines that take {_amounts(bundle)} each; free in the cluster are {_amounts(free)}"
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
        size, wait_s = self._num_processes, 2 * self._timeout_s  # who is missed for half of it is ended
        first = kind.remote(0, size, None, wait_s)
        meeting = first.meeting.remote() if size > 1 else None
        others = [kind.remote(rank, size, meeting, wait_s) for rank in range(1, size)]
        engine = EngineActor(number, [first, *others], lambda: self._stored, timeout_s=self._timeout_s)
        engine.ask(self._start)
        return engine

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Put them into Ray's object store; those before go when no engine reads them any more."""
        self._weights.write(weights)
        self._stored = self._put()

    def wait(self, engines: Sequence[EngineActor], timeout_s: float) -> list[EngineActor]:
        """Those that say something, or are gone, as soon as there is one; none after `timeout_s` seconds."""
        asked = [engine for engine in engines if engine.is_busy]
        ready, _ = ray.wait([one for engine in asked for one in engine.replies], timeout=timeout_s)
        return [engine for engine in asked if any(one in ready for one in engine.replies)]

    def close(self) -> None:
        """Give the place back, and leave the cluster."""
        remove_placement_group(self._group)
        self._weights.close()
        ray.shutdown()

    def _put(self) -> ray.ObjectRef:
        return ray.put(np.frombuffer(self._weights.memory, np.uint8))


class EngineActor(PlacedEngine):
    """One engine of one or several actors; `replies` are those to come to what they were asked last."""

    def __init__(
        self,
        number: int,
        actors: Sequence[ray.actor.ActorHandle],
        weights: Callable[[], ray.ObjectRef],
        *,
        timeout_s: float,
    ) -> None:
        super().__init__(number, num_processes=len(actors), timeout_s=timeout_s)
        self.replies: list[Any] = []
        self._actors = actors
        self._weights = weights

    @property
    def printed(self) -> str:
        """Ray's own logs."""
        files = " or ".join(f"worker-*-{pid}.err" for pid in sorted(self.pids)) or "worker-*.err"
        return f"{files} in Ray's logs on the machine that it was on"

    def end(self) -> None:
        """Kill the actors, which have nothing to lose. Harmless when called twice."""
        for actor in self._actors:
            ray.kill(actor)

    def _send(self, question: Question) -> None:
        memory = self._weights() if isinstance(question, Take) else None
        asked = [actor.replies.options(num_returns="streaming") for actor in self._actors]
        self.replies = [one.remote(question, memory) for one in asked]

    def _next(self) -> Reply:
        ready, _ = ray.wait(self.replies, timeout=self.timeout_s)
        replies = ready[0] if ready else self.replies[0]
        try:
            reply: Reply = ray.get(next(replies), timeout=self.timeout_s)
        except (ray.exceptions.RayError, StopIteration) as error:
            if isinstance(error, ray.exceptions.RayTaskError):  # a defect, not a loss
                raise
            raise EOFError(str(error)) from error
        if isinstance(reply, Done | Failed):  # its last
            self.replies.remove(replies)
        return reply

    def _has_lost_one(self, timeout_s: float) -> bool:
        if not self.replies:
            return False
        ended, _ = ray.wait(self.replies, num_returns=len(self.replies), timeout=timeout_s)
        try:
            ray.get([next(replies) for replies in ended])
        except ray.exceptions.RayError:
            return True
        return False


class Answering:
    """What runs on the cluster. Ray does not restart it: whoever asked it starts another with its weights.

    `rank`, `size` and `timeout_s` are as `Member` has them; the first tells the others where they meet.
    """

    def __init__(self, rank: int, size: int, meeting: str | None, timeout_s: float) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends us
        self._meeting = meeting or f"/proc/{os.getpid()}/fd/{meeting_memory()}"
        member = Member(rank=rank, size=size, meeting=self._meeting, timeout_s=timeout_s)
        self._worker = EngineWorker(member)

    def meeting(self) -> str:
        """Where all of the engine meet, as each process of this machine and user finds it."""
        return self._meeting

    def replies(self, question: Question, memory: Memory | None) -> Iterator[Reply]:
        """As `EngineWorker` says."""
        yield from self._worker.replies(question, memory)


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
