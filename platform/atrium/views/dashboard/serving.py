"""The socket of the dashboard, and the server that answers on it until Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.runs.run_folder import RunFolder

_NUM_PORTS_TRIED = 20
_STALLED_S = 30.0
"""How long a client may take nothing of an answer before it is cut off; the system watches this, on Linux."""
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
) -> None:
    """Serve the dashboard of a runs folder until Ctrl-C, and say where; see `create_app`."""
    # FastAPI and pyarrow cost a second that `--help` and mistakes need not pay.
    import uvicorn

    from atrium.views.dashboard.connections import PunctualProtocol, QuietServer
    from atrium.views.dashboard.server import create_app

    app = create_app(runs_dir, host=host, more_hosts=more_hosts, said_of=said_of)
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
        sys.stdout.write(f"  anyone who reaches {host} can read these runs and annotate them\n")
    sys.stdout.flush()
    if opens_browser and sys.stdout.isatty():
        webbrowser.open(url)
    server = QuietServer(settings)
    app.state.is_closing = lambda: server.should_exit
    with suppress(KeyboardInterrupt):  # it is how the dashboard is meant to end
        server.run(sockets=[listener])
    sys.stdout.flush()
    os._exit(0)  # threads that still compute an answer would keep the process


def listening(host: str, wanted: int, *, stalled_s: float = _STALLED_S) -> socket.socket:
    """A socket on the port, or on the first free one after it. Raises `ConfigError` where there is none.

    A client that takes nothing of an answer for `stalled_s` seconds loses its connection, and what waited for
    it is dropped; where the system cannot watch this, only the number of connections bounds it.
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
        except socket.gaierror as error:
            listener.close()
            raise ConfigError(f"--host {host}: {error.strerror}; name an address of this machine") from error
        except OSError:
            listener.close()
        else:
            return listener
    raise ConfigError(f"no port from {wanted} to {last} is free on {host}; choose another with --port")
