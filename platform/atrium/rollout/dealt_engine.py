"""An engine that deals its work over engines elsewhere, and starts those anew that are lost.

Work is dealt in units (see `units`) to whoever is free. A unit's completions depend on its requests and the
weights alone, so neither the number of engines nor where they live or which of them answers changes anything,
and a unit whose engine died or hangs is simply asked again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic

from torch import Tensor

from atrium.errors import EngineError
from atrium.rollout.engine import EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.rollout.engine_worker import (
    Answer,
    EngineStart,
    Failed,
    Join,
    Ping,
    Question,
    Receive,
    Release,
    Take,
    Unit,
)
from atrium.rollout.placed_engine import EnginePlace, PlacedT, WeightSender
from atrium.rollout.sampling import check_requests
from atrium.rollout.units import cut_units

_LOOK_EVERY_S = 0.5
# Engines that are lost one after the other, with no unit answered between, before this one gives up.
_MAX_LOST = 3


class DealtEngine(Generic[PlacedT]):
    """Samples with the engines of a place.

    Parameters
    ----------
    place
        Where they live.
    unit_samples
        The most samples of a unit; None for engines that batch by themselves, which get equal parts.
    context_length
        The most tokens that a prompt and its completion may have together.
    log
        Takes a line that people should read.
    sender
        What sends new weights to all engines at once; without it, each reads them where the place has them,
        as those do in any case that are started anew.
    """

    def __init__(
        self,
        place: EnginePlace[PlacedT],
        *,
        unit_samples: int | None,
        context_length: int,
        log: Callable[[str], None],
        sender: WeightSender | None = None,
    ) -> None:
        self._place = place
        self._sender = sender
        self._unit_samples = unit_samples
        self._context_length = context_length
        self._log = log
        self._weight_version = 0
        self._waiting: deque[Unit] = deque()
        self._unanswered: set[int] = set()
        self._num_lost = 0
        self._idle_s, self._looked = 0.0, time.monotonic()
        self._interrupted, self._is_closed = threading.Event(), False
        self._engines: list[PlacedT] = []
        self._connected: list[PlacedT] = []
        try:
            self._engines += [place.start(number) for number in range(place.num_engines)]
            self._settle()
        except BaseException:
            self.close()
            raise

    @property
    def weight_version(self) -> int:
        """The number of updates behind the weights that `generate` samples from."""
        return self._weight_version

    @property
    def facts(self) -> EngineFacts:
        """Those of the engines, which are alike, and for how long they have had nothing to do."""
        self._count_idle()
        found = [engine.facts for engine in self._engines]
        preempted = [facts.num_preempted for facts in found if facts.num_preempted is not None]
        return EngineFacts(
            described={**found[0].described, "processes": sum(one.num_processes for one in self._engines)},
            num_preempted=sum(preempted) if preempted else None,
            idle_s=self._idle_s,
        )

    @property
    def is_closed(self) -> bool:
        """Whether the engine has ended; it then answers nothing any more."""
        return self._is_closed

    @property
    def process_ids(self) -> list[int]:
        """The ids of the engines' processes where they run, for tests and diagnostics."""
        return [pid for engine in self._engines for pid in sorted(engine.pids)]

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        """Yield each request's completions once, as soon as all of them are finished, in any order.

        Checks all requests when called. Raises what the engines raise, `EngineError` when engines are lost
        again and again, when one answers with other weights than it was given, and when
        weights change before the last completion, and `InterruptedError` after `interrupt`.
        """
        check_requests(requests, sampling, context_length=self._context_length)
        return self._generate(tuple(requests), sampling)

    def _generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        version = self._weight_version
        self._unanswered = set(range(len(requests)))
        self._waiting.extend(
            Unit(tuple(places), tuple(requests[place] for place in places), sampling)
            for places in self._dealt(requests)
        )
        try:
            while self._unanswered:
                if self._interrupted.is_set():
                    raise InterruptedError("sampling was given up")
                if self._weight_version != version:
                    raise EngineError(
                        f"the weights went from version {version} to {self._weight_version} while "
                        "completions were sampled: take all completions before updating weights"
                    )
                for unit, generation in self._answers():
                    _check_version(generation, version)
                    place = unit.places[generation.request_index]
                    if place in self._unanswered:  # a unit that is asked again answers again
                        self._unanswered.remove(place)
                        yield replace(generation, request_index=place)
            self._settle()
        finally:
            self._drop_units()

    def _dealt(self, requests: Sequence[GenerationRequest]) -> Sequence[Sequence[int]]:
        if self._unit_samples is not None:
            return cut_units(requests, self._unit_samples)
        num = len(self._engines)
        parts = [range(first, len(requests), num) for first in range(num)]
        return [part for part in parts if part]

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take over a full `state_dict` as `version`, in all engines.

        Raises `EngineError`, with nothing changed, unless names and shapes are exactly the model's.
        """
        self._interrupted.clear()
        if self._sender is not None:
            self._ask_each(lambda _: Ping())  # who died since the last update is started anew
        self._settle()  # nobody reads the weights while they are written
        self._place.write(weights)
        self._weight_version = version
        if self._sender is None:
            self._ask_each(lambda _: Take(version))
        else:
            self._send(self._sender, weights)

    def _send(self, sender: WeightSender, weights: Mapping[str, Tensor]) -> None:
        if self._connected != self._engines:
            sender.connect(self._ask_group)
            self._connected = list(self._engines)
        sender.send(weights, self._weight_version, self._ask_group)

    def _ask_group(self, question_to: Callable[[int], Question]) -> None:
        try:
            self._ask_each(question_to)
        except EngineError as error:
            self._log(str(error))  # the sender may wait for this engine until its watchdog ends the process
            raise

    def release_memory(self) -> None:
        """Let all engines give their device's memory to others until they are used again."""
        self._ask_each(lambda _: Release())

    def interrupt(self) -> None:
        """Let the completions that another thread takes end with `InterruptedError`, within a second.

        It holds until new weights are taken.
        """
        self._interrupted.set()

    def close(self) -> None:
        """End all engines. Harmless when called twice."""
        if not self._is_closed:
            self._is_closed = True
            for engine in self._engines:
                engine.end()
            if self._sender is not None:
                self._sender.close()
            self._place.close()

    def _ask_each(self, question_to: Callable[[int], Question]) -> None:
        for engine in list(self._engines):
            self._ask(engine, question_to(engine.number))
        self._settle()

    def _settle(self) -> None:
        """Wait until all engines have done what they were asked."""
        while any(engine.is_busy for engine in self._engines):
            self._answers()

    def _answers(self) -> list[tuple[Unit, Generation]]:
        """Deal what waits to who is free; the completions that arrive soon after.

        An engine that is lost is started anew, and its unit waits again, before all others.
        """
        for engine in list(self._engines):
            if self._waiting and not engine.is_busy:
                self._ask(engine, self._waiting.popleft())
        ready = self._place.wait(self._engines, _LOOK_EVERY_S)
        self._count_idle()
        answers = []
        for engine in list(self._engines):
            if engine in ready:
                answers += self._heard(engine)
            elif engine.is_late:
                self._replace(engine, f"said nothing for {engine.patience_s:g} s")
        return answers

    def _heard(self, engine: PlacedT) -> list[tuple[Unit, Generation]]:
        """What an engine says: the completions of a request, if it says no other thing."""
        question = engine.question
        try:
            reply = engine.receive()
        except (EOFError, OSError):
            self._replace(engine, "died")
            return []
        if isinstance(reply, Answer):
            assert isinstance(question, Unit)
            return [(question, reply.generation)]
        if isinstance(reply, Failed):
            engine.question = None
            if engine.num_processes > 1:  # the others may wait for ever for the one that failed
                self._start_anew(engine)
            raise reply.error
        if engine.is_busy:  # others of its processes are not done yet
            return []
        if isinstance(question, EngineStart):
            self._ask(engine, Take(self._weight_version))
        elif isinstance(question, Unit):
            self._num_lost = 0
        return []

    def _ask(self, engine: PlacedT, question: Question) -> None:
        try:
            engine.ask(question)
        except OSError:
            self._replace(engine, "died")

    def _replace(self, engine: PlacedT, how: str) -> None:
        """Start an engine that is lost anew; what it was asked waits again."""
        engine.end()
        self._num_lost += 1
        said = f"engine {engine.number} {how} (what it printed: {engine.printed})"
        if isinstance(engine.question, Join | Receive):
            raise EngineError(
                f"{said} while weights were sent to all engines, which the others cannot go on with; go on "
                "from the last checkpoint with --resume (rollout.weight_transfer=host outlasts such a loss)"
            )
        if self._num_lost > _MAX_LOST:
            raise EngineError(f"{said}, the last of {self._num_lost} that were lost one after the other")
        self._log(f"{said}; it is started again, and its work is asked again")
        self._start_anew(engine)
        if isinstance(engine.question, Unit) and (left := self._left_of(engine.question)).places:
            self._waiting.appendleft(left)

    def _start_anew(self, engine: PlacedT) -> None:
        engine.end()
        self._engines[engine.number] = self._place.start(engine.number)

    def _left_of(self, unit: Unit) -> Unit:
        """What is asked again of a unit: all of it where it is sampled together, else what lacks answers."""
        if self._unit_samples is not None:
            return unit
        left = [pair for pair in zip(unit.places, unit.requests, strict=True) if pair[0] in self._unanswered]
        return Unit(tuple(place for place, _ in left), tuple(request for _, request in left), unit.sampling)

    def _drop_units(self) -> None:
        """Forget what is not answered; who works on it is started anew."""
        self._waiting.clear()
        for engine in list(self._engines):
            if isinstance(engine.question, Unit) and not self._is_closed:
                self._start_anew(engine)

    def _count_idle(self) -> None:
        """Add the time since the last look for all that had nothing to do in it."""
        now = time.monotonic()
        num_idle = sum(not engine.is_busy for engine in self._engines)
        self._idle_s += (now - self._looked) * num_idle / len(self._engines)
        self._looked = now


def _check_version(generation: Generation, version: int) -> None:
    for completion in generation.completions:
        if completion.weight_version != version:
            raise EngineError(
                f"an engine sampled with weights of version {completion.weight_version}, and version "
                f"{version} was asked for; go on from the last checkpoint with --resume"
            )
