"""`atrium clean`: list files that a runs directory no longer needs, and delete them with `--yes`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atrium.cli.parser import CommandParser, files_explained
from atrium.document.formatting import size
from atrium.runs.deletable import find_deletable, kept_because
from atrium.views.terminal import say, standard_output

_KINDS = {
    "caches": "caches only (warm-up models, fonts of figures)",
    "checkpoints": "checkpoints of finished runs only",
    "killed": "killed runs only, including those that could be resumed",
    "failed-starts": "runs that failed to start only",
}


def main(argv: Sequence[str]) -> int:
    """List the files that can be deleted, and delete them with `--yes`; return the exit code."""
    parser = CommandParser(
        "clean",
        "List the files that the runs directory does not need, with sizes; delete them with --yes. By\n"
        "default: caches, checkpoints of finished runs except the last and the best, killed runs\n"
        "without a checkpoint, and runs that failed to start.",
    )
    parser.add_argument("--yes", action="store_true", help="delete the listed files")
    for kind, meaning in _KINDS.items():
        parser.add_argument(f"--{kind}", dest="kinds", action="append_const", const=kind, help=meaning)
    parser.add_runs_dir()
    arguments = parser.parse(argv)
    with files_explained():
        _clean(Path(arguments.runs_dir), set(arguments.kinds or ()), delete=arguments.yes)
    return 0


def _clean(runs_dir: Path, kinds: set[str], *, delete: bool) -> None:
    console = standard_output()
    freed, spare = 0, list(find_deletable(runs_dir, kinds))
    for item in spare:
        kept = kept_because(item, runs_dir, delete=delete)
        freed += 0 if kept else item.num_bytes
        note = f"kept: {kept}" if kept else f"deleted ({item.what})" if delete else item.what
        say(console, f"{size(item.num_bytes):>8}  {item.path}  {note}")
    said = "freed" if delete else "in total; `atrium clean --yes` deletes these files"
    console.print(f"{size(freed)} {said}" if spare else "nothing to clean")
