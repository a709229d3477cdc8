"""A uvicorn server with a timeout for requests, and without tracebacks on shutdown."""

from __future__ import annotations

import asyncio
import logging
from types import FrameType

import h11
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol


class QuietServer(Server):
    """A uvicorn server that logs no errors for requests canceled by a shutdown."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Silence uvicorn's error log, then stop the server."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


class PunctualProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with a timeout for receiving a complete request.

    The first request must arrive within `REQUEST_S` seconds, and each later one within at most twice this
    time. Without the timeout, idle connections could exhaust uvicorn's connection limit and block all other
    clients. Responses have no timeout, so the event stream, for example, stays open.
    """

    REQUEST_S = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._look = self.loop.call_later(self.REQUEST_S, self._end_if_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the timeout for the next request."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def _end_if_late(self) -> None:
        is_waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if is_waiting and self.loop.time() - self._waits_since >= self.REQUEST_S:
            self.transport.close()
        else:
            self._look = self.loop.call_later(self.REQUEST_S, self._end_if_late)
