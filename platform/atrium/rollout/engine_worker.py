"""The process that an engine runs in beside the trainer, and what the two say to each other.

It answers one message after the other over an inherited socket and listens to nothing else. When that socket
closes, because the trainer closed the engine or died in whatever way, the process ends at once, in the
middle of sampling too. Weights are read from shared memory, when the trainer says that they are there.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from atrium import plugins
from atrium.rollout.engine import Engine, EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.rollout.shared_weights import Descriptor, SharedWeights, TensorPlace

BuildEngine = Callable[[], Engine]


@dataclass(frozen=True, kw_only=True)
class EngineStart:
    """What an engine's process begins with, which is the first that it is asked.

    Attributes
    ----------
    build
        A pickled `BuildEngine`; it is unpickled behind the plugins, whose classes it may hold.
    plugins
        The files of code of one's own.
    places
        Where the weights lie in the memory that is shared.
    device
        The one GPU that it sees, as CUDA_VISIBLE_DEVICES names it; None for what the trainer sees.
    log
        The file that takes what the process prints.
    """

    build: bytes
    plugins: tuple[str, ...]
    places: tuple[TensorPlace, ...]
    device: str | None
    log: Path


@dataclass(frozen=True, slots=True)
class Take:
    """Asks for the shared weights to be taken as `version`."""

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
class Done:
    """What was asked is done."""

    facts: EngineFacts


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The completions of a unit's request."""

    generation: Generation


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """What was asked for raised an error, which the trainer raises in its place."""

    error: Exception


Question = EngineStart | Take | Unit | Release
Reply = Answer | Done | Failed


def serve(connection: Connection, memory: Descriptor) -> None:
    """The life of the process."""
    os.setsid()  # out of the terminal's reach: Ctrl-C is for the trainer, which then closes us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_trainer, args=(connection,), daemon=True).start()
    start: EngineStart = connection.recv()
    _print_into(start.log)
    if start.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = start.device
    weights = SharedWeights(memory, start.places)
    try:
        plugins.load(start.plugins)
        build: BuildEngine = pickle.loads(start.build)  # noqa: S301 - from the trainer, over its own pipe
        engine = build()
    except Exception as error:  # raised again in the trainer
        connection.send(Failed(_sendable(error)))
        return
    connection.send(Done(engine.facts))
    while True:
        question: Take | Unit | Release = connection.recv()
        try:
            if isinstance(question, Take):
                engine.update_weights(weights.tensors, question.version)
            elif isinstance(question, Unit):
                for generation in engine.generate(question.requests, question.sampling):
                    connection.send(Answer(generation))
            else:
                engine.release_memory()
        except Exception as error:
            connection.send(Failed(_sendable(error)))
        else:
            connection.send(Done(engine.facts))


def _end_with_trainer(connection: Connection) -> None:
    """End this process when the other end of the socket is closed, whatever the main thread does."""
    hung_up = select.poll()
    hung_up.register(connection, 0)  # POLLHUP is always told
    hung_up.poll()
    os._exit(0)


def _sendable(error: Exception) -> Exception:
    """The error itself where it survives the way, or one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _print_into(log: Path) -> None:
    with log.open("ab") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
