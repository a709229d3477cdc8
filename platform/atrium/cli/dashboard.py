"""`atrium dashboard`: the local web application over the runs folder."""

from __future__ import annotations

import socket
import sys
import webbrowser
from contextlib import closing, suppress
from pathlib import Path

from atrium.cli.parser import CommandParser
from atrium.errors import ConfigError

_NUM_PORTS_TRIED = 20


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
            f"--runs-dir {arguments.runs_dir}: there is no such folder; `make train` makes one in runs"
        )
    if not 0 <= arguments.port < 65_536:
        parser.error(f"argument --port: {arguments.port} is no port (0 to 65535)")
    if not arguments.host.strip():
        parser.error("argument --host: an empty one means every address of this machine; name one")
    port = _free_port(arguments.host, arguments.port)
    _serve(
        runs_dir,
        arguments.host,
        port,
        more_hosts=tuple(arguments.allow_host),
        opens_browser=not arguments.no_browser,
    )
    return 0


def _serve(runs_dir: Path, host: str, port: int, *, more_hosts: tuple[str, ...], opens_browser: bool) -> None:
    # FastAPI and pyarrow cost a second that `--help` and mistakes need not pay.
    import uvicorn

    from atrium.compare.dashboard.server import create_app

    app = create_app(runs_dir, host=host, more_hosts=more_hosts)
    settings = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=3
    )
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{port}/"
    sys.stdout.write(f"dashboard of {runs_dir.absolute()}\n  {url}\n  Ctrl-C stops it\n")
    if host not in ("127.0.0.1", "localhost", "::1"):
        sys.stdout.write(f"  anyone who reaches {host} can read these runs and annotate them\n")
    sys.stdout.flush()
    if opens_browser and sys.stdout.isatty():
        webbrowser.open(url)
    server = uvicorn.Server(settings)
    app.state.is_closing = lambda: server.should_exit
    with suppress(KeyboardInterrupt):  # it is how the dashboard is meant to end
        server.run()


def _free_port(host: str, wanted: int) -> int:
    """The port, or the first free one after it. Raises `ConfigError` where there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = min(wanted + _NUM_PORTS_TRIED, 65_535)
    for port in range(wanted, last + 1):
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except socket.gaierror as error:
                raise ConfigError(
                    f"--host {host}: {error.strerror}; name an address of this machine"
                ) from error
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"no port from {wanted} to {last} is free on {host}; choose another with --port")
