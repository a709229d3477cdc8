"""`atrium dashboard`: the local web application over the runs folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, whole
from atrium.runs.run_folder import RunFolder
from atrium.views.dashboard.serving import listening, serve


def main(argv: list[str]) -> int:
    """Serve the dashboard until Ctrl-C."""
    parser = CommandParser(
        "dashboard",
        "See runs, compare them and read what they sampled, in a browser, live while they train.\n"
        "Nothing leaves this machine; its only writes are notes, tags and archive flags.",
    )
    parser.add_runs_dir()
    parser.add_address(8600, whole(0, 65_535), meaning="8600, or the next free one")
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
    if not arguments.host.strip():
        parser.error("argument --host: an empty one means every address of this machine; name one")
    with closing(listening(arguments.host, arguments.port)) as listener:
        serve(
            runs_dir,
            arguments.host,
            listener,
            more_hosts=arguments.allow_host,
            opens_browser=not arguments.no_browser,
            said_of=_claims_said,
        )
    return 0


def _claims_said(folders: Sequence[RunFolder]) -> list[str]:
    from atrium.claim.of_runs import claims_said  # SciPy, when a report is asked for

    return claims_said(folders)
