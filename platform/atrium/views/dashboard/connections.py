"""A variant of the uvicorn server with a timeout for requests, and without tracebacks when it stops."""

from __future__ import annotations

import asyncio
import logging
from types import FrameType

import h11
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol


class QuietServer(Server):
    """uvicorn's server, without error messages for requests that are canceled when it stops."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server; errors of canceled requests are not logged."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


class PunctualProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with a timeout of `REQUEST_S` seconds to receive a complete request.

    Idle connections count towards uvicorn's connection limit, so a few of them could block all others.
    Responses have no timeout; the event stream, for example, stays open.
    """

    REQUEST_S = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._look = self.loop.call_later(self.REQUEST_S, self._end_if_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the timeout of the next request."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def _end_if_late(self) -> None:
        is_waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if is_waiting and self.loop.time() - self._waits_since >= self.REQUEST_S:
            self.transport.close()
        else:
            self._look = self.loop.call_later(self.REQUEST_S, self._end_if_late)
