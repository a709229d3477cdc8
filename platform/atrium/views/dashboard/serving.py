"""The dashboard's listening socket and HTTP server."""

from __future__ import annotations

import errno
import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.document.document import Document
from atrium.runs.run_folder import RunFolder

_NUM_PORTS_TRIED = 20
_STALLED_S = 30.0
"""Seconds after which the system (Linux only) disconnects a client that receives no data."""
_MAX_CONNECTIONS = 128
_MAX_HEADER_BYTES = 65_536


def serve(
    runs_dir: Path,
    host: str,
    listener: socket.socket,
    *,
    more_hosts: Collection[str],
    opens_browser: bool,
    said_of: Callable[[Sequence[RunFolder]], list[str]],
    atlas_of: Callable[[RunFolder | None], Document],
) -> None:
    """Print the dashboard's address and serve the dashboard until Ctrl-C, which ends the process.

    `listener` is a socket from `listening`. If `opens_browser` is true and stdout is a terminal, the
    dashboard is opened in a web browser. For the other arguments see `create_app`.
    """
    # FastAPI and pyarrow take a second to import, which `--help` and invalid arguments do not need.
    import uvicorn

    from atrium.views.dashboard.connections import PunctualProtocol, QuietServer
    from atrium.views.dashboard.server import create_app

    app = create_app(runs_dir, host=host, more_hosts=more_hosts, said_of=said_of, atlas_of=atlas_of)
    settings = uvicorn.Config(
        app,
        http=PunctualProtocol,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=_MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
    )
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{listener.getsockname()[1]}/"
    sys.stdout.write(f"dashboard of {runs_dir.absolute()}\n  {url}\n  Ctrl-C stops it\n")
    if host not in ("127.0.0.1", "localhost", "::1"):
        sys.stdout.write(f"  anyone with access to {host} can read and annotate these runs\n")
    sys.stdout.flush()
    if opens_browser and sys.stdout.isatty():
        webbrowser.open(url)
    server = QuietServer(settings)
    app.state.is_closing = lambda: server.should_exit
    with suppress(KeyboardInterrupt):  # the normal way to stop the dashboard
        server.run(sockets=[listener])
    sys.stdout.flush()
    os._exit(0)  # threads that still compute an answer would keep the process alive


def listening(host: str, wanted: int, *, stalled_s: float = _STALLED_S) -> socket.socket:
    """Return a listening socket on port `wanted` or one of the next 20 ports.

    Raises `ConfigError` if none of them can be used or `host` is not an address of this machine. On Linux, a
    client that accepts none of the data sent to it for `stalled_s` seconds is disconnected. On other systems,
    only the connection limit bounds the number of such clients.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = min(wanted + _NUM_PORTS_TRIED, 65_535)
    for port in range(wanted, last + 1):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stalled_s * 1000))
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            listener.close()
            reason = error.strerror
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"--host {host}: {reason}; give an address of this machine") from error
        else:
            return listener
    ports = f"port {wanted}" if last == wanted else f"ports {wanted} to {last}"
    raise ConfigError(f"{ports} on {host} cannot be used: {reason}; choose another --port")
