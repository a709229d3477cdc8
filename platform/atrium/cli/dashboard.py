"""`atrium dashboard`: the local web application over the runs folder."""

from __future__ import annotations

import socket
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser
from atrium.runs.run_folder import RunFolder

_NUM_PORTS_TRIED = 20
_STALLED_S = 30.0
"""How long a client may take nothing of an answer before it is cut off; the system watches this, on Linux."""
_MAX_CONNECTIONS = 128
_MAX_HEADER_BYTES = 65_536


def main(argv: list[str]) -> int:
    """Serve the dashboard until Ctrl-C."""
    parser = CommandParser(
        "dashboard",
        "See runs, compare them and read what they sampled, in a browser, live while they train.\n"
        "Nothing leaves this machine; its only writes are notes, tags and archive flags.",
    )
    parser.add_runs_dir()
    parser.add_argument("--port", type=int, default=8600, help="port (default: 8600, or the next free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name that browsers may address the server by; may be repeated",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    arguments = parser.parse(argv)
    runs_dir = Path(arguments.runs_dir)
    if not runs_dir.is_dir():
        raise ConfigError(
            f"--runs-dir {arguments.runs_dir}: there is no such folder; `atrium train` makes one in runs"
        )
    if not 0 <= arguments.port < 65_536:
        parser.error(f"argument --port: {arguments.port} is no port (0 to 65535)")
    if not arguments.host.strip():
        parser.error("argument --host: an empty one means every address of this machine; name one")
    with closing(listening(arguments.host, arguments.port)) as listener:
        _serve(
            runs_dir,
            arguments.host,
            listener,
            more_hosts=tuple(arguments.allow_host),
            opens_browser=not arguments.no_browser,
        )
    return 0


def _claims_said(folders: Sequence[RunFolder]) -> list[str]:
    from atrium.claim.of_runs import claims_said  # SciPy, when a report is asked for

    return claims_said(folders)


def _serve(
    runs_dir: Path, host: str, listener: socket.socket, *, more_hosts: tuple[str, ...], opens_browser: bool
) -> None:
    # FastAPI and pyarrow cost a second that `--help` and mistakes need not pay.
    import uvicorn

    from atrium.views.dashboard.connections import PunctualProtocol
    from atrium.views.dashboard.server import create_app

    app = create_app(runs_dir, host=host, more_hosts=more_hosts, said_of=_claims_said)
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
    server = uvicorn.Server(settings)
    app.state.is_closing = lambda: server.should_exit
    with suppress(KeyboardInterrupt):  # it is how the dashboard is meant to end
        server.run(sockets=[listener])


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
