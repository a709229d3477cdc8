"""`atrium rerun`: train a new run with the stored settings of an earlier run."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.assemble.beginning import Origin, begin
from atrium.base import plugins
from atrium.base.errors import RunFolderError
from atrium.cli.parser import CommandParser, files_explained
from atrium.runs.find import TRAINED, find_run


def main(argv: Sequence[str]) -> int:
    """Train a new run with an earlier run's stored settings and return 0; may raise `AtriumError`."""
    parser = CommandParser(
        "rerun",
        "Train a new run with the settings of another, including its seed. On the same machine and with\n"
        "the same code, all metrics except times are bitwise identical.",
    )
    parser.add_run()
    arguments = parser.parse(argv)
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run, last=TRAINED)
        if not folder.config_file.is_file():
            raise RunFolderError(
                f"{folder.path} has no config.json, so the settings of the run are unknown; choose "
                "another run"
            )
    plugins.note_changes(folder.provenance_file)
    begin(Origin(file=str(folder.config_file)), [])
    return 0
