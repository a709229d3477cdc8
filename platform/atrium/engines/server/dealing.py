"""Distribution of samples to the servers of a pool, by load and weight version.

The completion of a sample depends on its prompt, its seed and the weights, so neither the choice of a server
nor a repeated request changes a result.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx

from atrium.base.errors import reason_of
from atrium.base.records import Completion
from atrium.engines.engine import Generation
from atrium.engines.server.client import ServerError, UnfitServerError
from atrium.engines.server.pool import Server, ServerPool

_MAX_TRIES = 3  # invalid responses for one sample


@dataclass(kw_only=True, eq=False)
class Sample:
    """A completion to sample, with vLLM's sampling parameters.

    `place` is a pair: the index of the request that the sample belongs to, and the sample's index within this
    request. `num_failures` counts the requests for this sample that a server rejected or answered with an
    invalid response.
    """

    place: tuple[int, int]
    token_ids: Sequence[int]
    parameters: Mapping[str, Any]
    num_failures: int = 0


@dataclass(kw_only=True, eq=False)
class Batch:
    """A batch of requests to sample with the weights of `version` (None for the servers' current weights).

    `complete` converts a request's answers to completions. Any thread may put answers and errors into
    `found`, but only one thread may call `next`.
    """

    version: int | None
    complete: Callable[[Sequence[SimpleNamespace]], Sequence[Completion]]
    waiting: deque[Sample] = field(default_factory=deque)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    found: queue.SimpleQueue[tuple[Sample, SimpleNamespace] | BaseException] = field(
        default_factory=queue.SimpleQueue
    )
    num_samples: dict[int, int] = field(default_factory=dict)
    """The number of samples of each unfinished request, at least one, by the index of the request."""
    _parts: dict[int, dict[int, SimpleNamespace]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether no sample is waiting or being sampled."""
        return not self.waiting and not self.tasks

    def next(self) -> Generation:
        """Wait for the next finished request, and return its completions.

        Raises any error that was put into `found`.
        """
        while True:
            found = self.found.get()
            if isinstance(found, BaseException):
                raise found
            (index, number), answer = found[0].place, found[1]
            parts = self._parts.setdefault(index, {})
            parts[number] = answer
            if len(parts) == self.num_samples[index]:
                del self._parts[index], self.num_samples[index]
                answers = [parts[place] for place in range(len(parts))]
                return Generation(request_index=index, completions=tuple(self.complete(answers)))


class Dealer:
    """A dispatcher of batches to a pool's servers, with at most `per_server` concurrent requests each.

    The oldest waiting batch goes first. An idle server loads the weights of this batch, so servers that have
    finished their share of a batch begin the next one while others are still busy.
    """

    def __init__(self, pool: ServerPool, per_server: int) -> None:
        self._pool = pool
        self._per_server = per_server
        self._batches: list[Batch] = []

    async def answer(self, batch: Batch) -> None:
        """Sample the whole batch; raise `EngineError` if servers are lost repeatedly.

        A batch with version None may grow at any time, so this coroutine runs until it is cancelled.
        """
        self._batches.append(batch)
        try:
            while batch.version is None or not batch.is_done:
                self._pool.check(batch.version)
                self._deal()
                await self._pool.next_change()
        finally:
            self._batches.remove(batch)
            for task in list(batch.tasks):
                task.cancel()
            await asyncio.gather(*batch.tasks, return_exceptions=True)

    def _deal(self) -> None:
        for batch in self._batches:
            while batch.waiting and (free := self._free(batch.version)) is not None:
                self._request(*free, batch)
            if batch.waiting:
                if batch.version is not None:
                    self._pool.load_idle(batch.version)
                return

    def _free(self, version: int | None) -> tuple[Server, asyncio.Future[None]] | None:
        """Return the least busy server whose weights are `version`, and its `lost` future.

        Only servers that are ready and whose version is known qualify. If `version` is None, all versions
        qualify. Returns None if no server qualifies or all that qualify have `per_server` requests.
        """
        up = [
            (one, one.lost)
            for one in self._pool.servers
            if one.lost is not None and one.version is not None and version in (None, one.version)
        ]
        free = min(up, key=lambda pair: pair[0].num_requests, default=None)
        return free if free is not None and free[0].num_requests < self._per_server else None

    def _request(self, server: Server, lost: asyncio.Future[None], batch: Batch) -> None:
        server.num_requests += 1
        if server.num_requests == 1:
            server.busy_since = time.monotonic()
        task = asyncio.create_task(self._one(server, lost, batch.waiting.popleft(), batch))
        batch.tasks.add(task)
        task.add_done_callback(batch.tasks.discard)
        task.add_done_callback(lambda _: self._pool.notify())

    async def _one(self, server: Server, lost: asyncio.Future[None], sample: Sample, batch: Batch) -> None:
        """Request one sample, and put the answer into `batch.found`.

        If the request fails, or if `lost` is done before the answer arrives, the sample is put back at the
        front of `batch.waiting`. `lost` is the server's future at the time of the request.
        """
        pool = self._pool
        request = asyncio.create_task(server.client.sample(sample.token_ids, sample.parameters))
        try:
            both: set[asyncio.Future[Any]] = {request, lost}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ServerError("the server was lost before it answered the request")
            answer = request.result()
            _check(answer, batch.version)
        except (httpx.HTTPError, ServerError) as error:
            sample.num_failures += isinstance(error, ServerError) and not lost.done()
            batch.waiting.appendleft(sample)
            if sample.num_failures > _MAX_TRIES or isinstance(error, UnfitServerError):
                pool.fail(f"{server.name} failed to answer a request: {reason_of(error)} ({server.log})")
            elif not lost.done() and not await _is_idle_connection(server, error):
                pool.lose(server, lost, reason_of(error))
        else:
            server.num_lost = 0
            batch.found.put((sample, answer))
        finally:
            request.cancel()
            server.num_requests -= 1
            if server.num_requests == 0:
                server.busy_s += time.monotonic() - server.busy_since


async def _is_idle_connection(server: Server, error: Exception) -> bool:
    """Return whether the cause of the error is only that a healthy server has closed an idle connection."""
    if not isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
        return False
    has_ended = server.process is not None and server.process.exit_code is not None
    with suppress(UnfitServerError):
        return not has_ended and await server.client.obstacle() is None
    return False


def _check(answer: SimpleNamespace, version: int | None) -> None:
    """Raise `ServerError` if a completion has an unknown finish reason, or was sampled with other weights.

    The weights must be those of `version`. If `version` is None, any weights are allowed.
    """
    if answer.finish_reason not in ("stop", "length"):
        raise ServerError(f"a completion has the unknown finish reason '{answer.finish_reason}'")
    versions = {found for found, _, _ in answer.spans}
    if version is not None and versions != {version}:
        raise ServerError(
            f"a completion was sampled with weights of version {', '.join(map(str, sorted(versions)))}, "
            f"expected {version}"
        )
