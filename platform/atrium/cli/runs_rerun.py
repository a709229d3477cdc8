"""`atrium rerun`: a new run with the settings of an old one."""

from __future__ import annotations

from atrium.cli.runs_command import CommandParser, files_explained
from atrium.errors import RunFolderError
from atrium.tracking.find import TRAINED, find_run


def main_rerun(argv: list[str]) -> int:
    """Train a new run with the stored settings of another."""
    parser = CommandParser(
        "rerun",
        "Train a new run with the settings of another, its seed included. On the same machine and with\n"
        "the same code it repeats the other's metrics bit for bit, times excepted.",
    )
    parser.add_run()
    if (arguments := parser.parse(argv)) is None:
        return 0
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run, last=TRAINED)
        if not folder.config_file.is_file():
            raise RunFolderError(f"{folder.path} has no config.json, so its settings are not known")
    from atrium.cli.train import main as train_main

    return train_main(["--from-config", str(folder.config_file)])
