"""A pool of servers, which starts servers, restarts lost servers, and loads weights.

All methods run in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from atrium.base.errors import EngineError, reason_of
from atrium.engines.server.client import Expected, ServerClient, ServerError, UnfitServerError
from atrium.engines.server.process import ServerProcess

_LOOK_EVERY_S, _RETRY_S = 5.0, 0.2
_MAX_LOST = 3  # losses of one server without a completion in between
RESUME = "resume from the last checkpoint with --resume"
"""The remedy at the end of messages about lost servers."""


@dataclass(kw_only=True, eq=False)
class Server:
    """A server of the pool; `process` is None for a server that Atrium did not start.

    `lost` is a future while the server is ready, and None otherwise. Its result is set when the server is
    lost. `version` is the version of the server's weights, or None while it is unknown. `num_lost` counts how
    often the server was lost or failed to restart since its last completion. `busy_s` is the total length in
    seconds of the past periods in which the server had requests, and `busy_since` is the start of the latest
    period, as a value of `time.monotonic()`.
    """

    name: str
    client: ServerClient
    process: ServerProcess | None
    lost: asyncio.Future[None] | None = None
    version: int | None = None
    is_loading: bool = False
    num_lost: int = 0
    num_requests: int = 0
    busy_s: float = 0.0
    busy_since: float = 0.0
    described: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def log(self) -> str:
        """Text for a message: where the server's log is and, if Atrium started the server, its last lines."""
        if self.process is None:
            return "its log is where it was started"
        words = self.process.last_words()
        return f"log {self.process.log}" + (f": {words}" if words else "")


@dataclass(eq=False)
class ServerPool:
    """A pool of servers with the same model.

    Parameters
    ----------
    servers
        All servers of the pool.
    expected
        Required properties of each server.
    is_continuous
        Whether servers load new weights while they sample. Otherwise a busy server keeps its weights.
    start_timeout_s, hang_timeout_s
        Timeouts in seconds. The first limits the start of a server. The second limits the loading of new
        weights, and the time in which a server with requests computes no token.
    log
        Function that shows one line to the user.
    """

    servers: Sequence[Server]
    _: KW_ONLY
    expected: Expected
    is_continuous: bool
    start_timeout_s: float
    hang_timeout_s: float
    log: Callable[[str], None]
    _folders: dict[int, Path] = field(default_factory=dict, init=False)
    _newest: int = field(default=0, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _failure: Exception | None = field(default=None, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def start(self, folder: Path | None, version: int) -> None:
        """Start all servers with the weights in `folder`; raise `EngineError` if one does not start.

        Without a folder, servers wait for weights from `receive`, also after a restart.
        """
        self._newest = version
        if folder is not None:
            self._folders[version] = folder
        await asyncio.gather(*(self._start(server) for server in self.servers))
        self._spawn(self._watch())

    async def update(self, folder: Path, version: int) -> None:
        """Register the weights in `folder` as `version`, and load them into idle servers.

        In continuous mode, busy servers load them too. A server that fails to load the weights is restarted
        in the background, but if Atrium did not start it and it rejects the weights, the pool fails. Raises
        `EngineError` if the pool has failed.
        """
        self._folders[version], self._newest = folder, version
        up = [one for one in self.servers if one.lost is not None]
        free = [one for one in up if self.is_continuous or not (one.num_requests or one.is_loading)]
        await asyncio.gather(*[self._loading(server, version) for server in free])
        self.check(None)

    def load_idle(self, version: int) -> None:
        """Load the weights of `version` into idle servers in the background."""
        for server in self.servers:
            is_idle = server.lost is not None and not (server.num_requests or server.is_loading)
            if is_idle and server.version != version and version in self._folders:
                self._spawn(self._loading(server, version))

    def check(self, version: int | None) -> None:
        """Raise `EngineError` if the pool has failed.

        The pool also fails if no server has the weights of `version` and there are no weight files to load.
        If `version` is None, the weights are not checked.
        """
        has_version = version is None or any(one.version == version for one in self.servers)
        if not self._folders and not has_version:
            self.fail("all servers that had the weights were lost")
        if self._failure is not None:
            raise self._failure

    async def next_change(self) -> None:
        """Wait until a request has ended, or the state of a server has changed."""
        self._changed.clear()
        await self._changed.wait()

    def notify(self) -> None:
        """Wake all coroutines that wait in `next_change` or `reachable`."""
        self._changed.set()

    async def reachable(self, *, wait_for_all: bool = False) -> list[Server]:
        """Wait for at least one server, or for all, to respond, and return the servers that respond.

        Raises `EngineError` if the pool fails in the meantime.
        """
        while self._failure is None:
            self._changed.clear()
            for server in self.servers:
                if (lost := server.lost) is not None and await server.client.obstacle() is not None:
                    self.lose(server, lost, "it does not respond")
            up = [server for server in self.servers if server.lost is not None]
            if len(up) >= (len(self.servers) if wait_for_all else 1):
                return up
            await self._changed.wait()
        raise self._failure

    async def receive(self, servers: Sequence[Server], update_info: Mapping[str, Any], version: int) -> None:
        """Make `servers` receive the weights of `version` over NCCL.

        `update_info` contains the names, dtypes and shapes of the weights, as vLLM expects them. Raises
        `ServerError` or `httpx.HTTPError` if a server fails.
        """
        for server in servers:
            server.version = None
        tasks = {asyncio.create_task(_receive(one, update_info, version)) for one in servers}
        try:
            while tasks:
                done, tasks = await asyncio.wait(tasks, timeout=_RETRY_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                # A server whose engine has crashed never responds to earlier requests.
                for server in servers:
                    if await server.client.obstacle() is not None:
                        raise ServerError(f"{server.name} does not respond")
        finally:
            for task in tasks:
                task.cancel()
        for server in servers:
            server.version = version
        self._changed.set()

    async def restart(self, why: str) -> None:
        """Restart all servers, log the reason `why`, and wait until the servers are ready.

        Raises `EngineError` if a server was not started by Atrium.
        """
        for server in self.servers:
            if (lost := server.lost) is not None:
                if server.process is None:
                    self.fail(f"{server.name} was not started here and cannot be restarted: {why}")
                self.lose(server, lost, why)
        await self.reachable(wait_for_all=True)

    async def close(self) -> None:
        """End all servers started by the pool."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self.servers:
            await server.client.close()
        ending = (asyncio.to_thread(one.process.end) for one in self.servers if one.process is not None)
        await asyncio.gather(*ending)

    async def counters(self) -> dict[str, float]:
        """Return vLLM's counts of tokens and preemptions, by name, summed over the servers that respond.

        The counts of a restarted server begin at zero.
        """
        total: dict[str, float] = {}
        for server in self.servers:
            if server.lost is not None:
                with suppress(httpx.HTTPError):
                    for name, value in (await server.client.counters()).items():
                        total[name] = total.get(name, 0.0) + value
        return total

    def lose(self, server: Server, lost: asyncio.Future[None], why: str) -> None:
        """Mark a server as lost, log `why`, and restart it in the background.

        If Atrium did not start the server, the pool only waits for it. The pool fails if the server is lost
        too often. `lost` is the `Server.lost` that the caller read before the loss. If this future is done,
        the loss is already known, and the call has no effect.
        """
        if lost.done():
            return
        lost.set_result(None)
        server.lost = server.version = None
        server.num_lost += 1
        said = f"{server.name} is lost: {why} ({server.log})"
        if server.num_lost > _MAX_LOST:
            self.fail(f"{said}; it was lost {server.num_lost} times in a row without a completion")
            return
        remedy = "it is restarted" if server.process is not None else self._waits
        self.log(f"{said}; {remedy}, and its requests are sent again")
        self._spawn(self._restart(server))

    async def _restart(self, server: Server) -> None:
        try:
            await self._start(server)
        except EngineError as error:
            server.num_lost += 1
            if server.num_lost > _MAX_LOST or isinstance(error.__cause__, UnfitServerError):
                self.fail(str(error))
            else:
                self.log(f"{error}; it is restarted again")
                self._spawn(self._restart(server))
        self._changed.set()

    async def _start(self, server: Server) -> None:
        """Start a server, wait until it is ready, check it, and load the newest weights."""
        if server.process is not None:
            await asyncio.to_thread(server.process.start)
        try:
            async with asyncio.timeout(2 * self.start_timeout_s):
                await self._until_healthy(server)
                server.described = await server.client.check(self.expected)
                await self._catch_up(server)
        except (httpx.HTTPError, ServerError, TimeoutError) as error:
            raise EngineError(f"{server.name} cannot be used: {reason_of(error)} ({server.log})") from error
        server.lost = asyncio.get_running_loop().create_future()
        self._changed.set()

    async def _catch_up(self, server: Server) -> None:
        """Load the newest weights, repeatedly if they change during the transfer."""
        while self._folders and server.version != self._newest:
            version = self._newest
            try:
                await server.client.take_weights(self._folders[version], version)
            except ServerError:
                if version == self._newest:
                    raise
            else:
                server.version = version

    async def _until_healthy(self, server: Server) -> None:
        started, has_said = time.monotonic(), server.num_lost > 0
        while (obstacle := await server.client.obstacle()) is not None:
            if server.process is not None and (code := server.process.exit_code) is not None:
                raise ServerError(f"the server exited with code {code} before it was ready")
            if time.monotonic() - started > self.start_timeout_s:
                kind = UnfitServerError if server.process is None else ServerError
                raise kind(
                    f"no server was ready within {self.start_timeout_s:g} s ({obstacle}); raise "
                    "rollout.start_timeout_s if the server needs more time"
                )
            if server.process is None and not has_said:
                self.log(f"{server.name} does not respond ({obstacle}); {self._waits}")
                has_said = True
            await asyncio.sleep(_RETRY_S)

    def _loading(self, server: Server, version: int) -> Coroutine[Any, Any, None]:
        """Mark a server as loading, and return the coroutine that loads the weights.

        The coroutine does not run immediately. Without the mark, another batch could start loading other
        weights in the meantime, and after two concurrent loads the recorded version could be wrong.
        """
        server.version, server.is_loading = None, True
        return self._load(server, version)

    async def _load(self, server: Server, version: int) -> None:
        lost = server.lost
        assert lost is not None
        try:
            async with asyncio.timeout(self.hang_timeout_s):
                async with server.client.paused() if server.num_requests else nullcontext():
                    await server.client.take_weights(self._folders[version], version)
            server.version = version
        except (httpx.HTTPError, ServerError, TimeoutError) as error:
            if isinstance(error, ServerError) and server.process is None:
                self.fail(f"{server.name} cannot load new weights: {reason_of(error)}")
            else:
                self.lose(server, lost, f"new weights did not arrive, {reason_of(error)}")
        finally:
            server.is_loading = False
            self._changed.set()

    async def _watch(self) -> None:
        """Mark servers as lost that have requests but compute no token for `hang_timeout_s` seconds.

        The coroutine checks all servers repeatedly until it is cancelled.
        """
        every = min(_LOOK_EVERY_S, self.hang_timeout_s / 4)
        seen: dict[str, tuple[asyncio.Future[None], object, float]] = {}
        while True:
            await asyncio.sleep(every)
            for server in self.servers:
                lost, now = server.lost, time.monotonic()
                if lost is None or not server.num_requests:
                    seen.pop(server.name, None)
                    continue
                before = seen.get(server.name)
                try:
                    counts: object = await server.client.counters(every)
                except httpx.HTTPError:
                    counts = before[1] if before else None
                if before is None or before[0] is not lost or before[1] != counts:
                    seen[server.name] = (lost, counts, now)
                elif now - before[2] > self.hang_timeout_s:
                    self.lose(server, lost, f"it computed no token for {self.hang_timeout_s:g} s")

    @property
    def _waits(self) -> str:
        """Text for a message: how long the run waits for a server that Atrium did not start."""
        return f"the run waits {self.start_timeout_s:g} s for it (rollout.start_timeout_s)"

    def fail(self, why: str) -> None:
        """Record an `EngineError` with the reason `why`, which ends all waits for completions."""
        self._failure = EngineError(f"{why}; {RESUME}")
        self._changed.set()

    def _spawn(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _receive(server: Server, update_info: Mapping[str, Any], version: int) -> None:
    async with server.client.paused() if server.num_requests else nullcontext():
        await server.client.receive_weights(update_info, version)
