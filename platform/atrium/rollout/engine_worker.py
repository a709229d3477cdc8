"""What answers for an engine away from the trainer's process, and what the two say to each other.

It answers one question after the other. Weights are read from memory that is shared with the trainer, when
the trainer says that they are there.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from atrium import plugins
from atrium.rollout.engine import Engine, EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.rollout.engine_member import Member
from atrium.rollout.shared_weights import Memory, TensorPlace, tensors_in

BuildEngine = Callable[[], Engine]


@dataclass(frozen=True, kw_only=True)
class EngineStart:
    """What an engine begins with, which is the first that it is asked.

    Attributes
    ----------
    build
        A pickled `BuildEngine`; it is unpickled behind the plugins, whose classes it may hold.
    plugins
        The files of code of one's own.
    places
        Where the weights lie in the memory that is shared.
    device
        What it computes on.
    is_afar
        Whether weights are sent to it from another machine.
    """

    build: bytes
    plugins: tuple[str, ...]
    places: tuple[TensorPlace, ...]
    device: Literal["cpu", "cuda"]
    is_afar: bool = False


@dataclass(frozen=True, slots=True)
class Take:
    """Asks for the shared weights to be taken as `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class Join:
    """Asks an engine to come into the group to whose members the trainer sends weights."""

    group: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Receive:
    """Asks an engine of that group for what the trainer sends now, which it takes as `version`."""

    tensors: Mapping[str, Any]
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Asks for completions; there is an `Answer` for each request before `Done`.

    `places` are those of the requests among the caller's.
    """

    places: tuple[int, ...]
    requests: tuple[GenerationRequest, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Release:
    """Asks for the device's memory to be given to others."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for nothing: it finds out who is gone."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked is done, by the process of this id."""

    facts: EngineFacts
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The completions of a unit's request."""

    generation: Generation


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """What was asked for raised an error, which the trainer raises in its place."""

    error: Exception


Question = EngineStart | Take | Join | Receive | Unit | Release | Ping
AskEach = Callable[[Callable[[int], Question]], None]
"""Asks each engine what is made of its number, and waits until all have done it."""
Reply = Answer | Done | Failed


class Receiver(Protocol):
    """An engine to which weights can be sent."""

    def join_group(self, group: Mapping[str, Any]) -> None:
        """Come into a group with the trainer, in place of an earlier one."""
        ...

    def receive_weights(self, tensors: Mapping[str, Any], version: int) -> None:
        """Take what the trainer sends to the group as `version`."""
        ...


class EngineWorker:
    """Builds an engine, or its part of one, when it is asked its start, and answers with it from then on."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._engine: Engine
        self._places: tuple[TensorPlace, ...] = ()

    def replies(self, question: Question, memory: Memory | None) -> Iterator[Reply]:
        """All that is said to a question; `memory` holds the weights that are to be taken.

        Of an engine's processes, which are asked the same, all say how it ends, and the first alone `Answer`.
        """
        try:
            if isinstance(question, EngineStart):
                self._member.join(question.device, is_afar=question.is_afar)
                plugins.load(question.plugins)
                build: BuildEngine = pickle.loads(question.build)  # noqa: S301 - the trainer's own
                self._engine, self._places = build(), question.places
            elif isinstance(question, Take):
                assert memory is not None
                self._engine.update_weights(tensors_in(memory, self._places), question.version)
            elif isinstance(question, Join):
                cast(Receiver, self._engine).join_group(question.group)
            elif isinstance(question, Receive):
                cast(Receiver, self._engine).receive_weights(question.tensors, question.version)
            elif isinstance(question, Unit):
                for generation in self._engine.generate(question.requests, question.sampling):
                    if self._member.answers:
                        yield Answer(generation)
            elif isinstance(question, Release):
                self._engine.release_memory()
        except Exception as error:  # raised again in the trainer
            yield Failed(_sendable(error))
        else:
            yield Done(self._engine.facts)


def _sendable(error: Exception) -> Exception:
    """The error itself where it survives the way, or one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
