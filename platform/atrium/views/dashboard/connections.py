"""Connections that end where a client takes too long with its request, and a server that stops in silence."""

from __future__ import annotations

import asyncio
import logging
from types import FrameType

import h11
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol


class QuietServer(Server):
    """uvicorn's server; requests that are dropped when it stops are no errors."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, and log no traceback of what is computed meanwhile."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


class PunctualProtocol(H11Protocol):
    """uvicorn's protocol; a request that is not whole within `REQUEST_S` costs its client the connection.

    uvicorn counts connections that say nothing among those that it serves, so that some would keep all others
    out. An answer may take as long as it likes, such as the one by which news arrive.
    """

    REQUEST_S = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._look = self.loop.call_later(self.REQUEST_S, self._end_if_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def _end_if_late(self) -> None:
        is_waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if is_waiting and self.loop.time() - self._waits_since >= self.REQUEST_S:
            self.transport.close()
        else:
            self._look = self.loop.call_later(self.REQUEST_S, self._end_if_late)
