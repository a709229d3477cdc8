"""`atrium dashboard`: a local web application that shows the runs directory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, whole
from atrium.document.document import Document
from atrium.runs.run_folder import RunFolder
from atrium.views.dashboard.serving import listening, serve


def main(argv: list[str]) -> int:
    """Serve the dashboard until Ctrl-C; raise `ConfigError` if the runs directory is missing."""
    parser = CommandParser(
        "dashboard",
        "Show and compare runs and their samples in a browser, live during training.\n"
        "All data stay on this machine; the dashboard writes only notes, tags and archive flags.",
    )
    parser.add_runs_dir()
    parser.add_address(8600, whole(0, 65_535), meaning="8600, or the next free one")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="an additional host name of the server for browsers (repeatable)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    arguments = parser.parse(argv)
    runs_dir = Path(arguments.runs_dir)
    if not runs_dir.is_dir():
        raise ConfigError(
            f"--runs-dir {arguments.runs_dir}: there is no such folder; correct the path, or create runs "
            "with `atrium train`"
        )
    if not arguments.host.strip():
        parser.error(
            "argument --host: the address must not be empty, since an empty address means all addresses of "
            "this machine"
        )
    with closing(listening(arguments.host, arguments.port)) as listener:
        serve(
            runs_dir,
            arguments.host,
            listener,
            more_hosts=arguments.allow_host,
            opens_browser=not arguments.no_browser,
            said_of=_claims_said,
            atlas_of=_atlas_of,
        )
    return 0


def _claims_said(folders: Sequence[RunFolder]) -> list[str]:
    from atrium.claim.of_runs import claims_said  # imports SciPy, which only a report needs

    return claims_said(folders)


def _atlas_of(folder: RunFolder | None) -> Document:
    from atrium.assemble.atlas import page_of  # torch, when the page is opened

    return page_of(folder)
