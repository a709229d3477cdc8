"""What the commands over the runs folder share: their parser, their console, and how they name a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from atrium import plugins
from atrium.errors import ConfigError, RunFolderError
from atrium.tracking.recorded import read_object

if TYPE_CHECKING:
    from rich.console import Console

    from atrium.tracking.run_folder import RunFolder

_PIPE_WIDTH = 160


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaints are `ConfigError`s of one line, and whose options are not guessed."""

    def __init__(self, name: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=f"atrium {name}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong."""
        raise ConfigError(f"{self.prog}: {message}; `{self.prog} --help` says what it takes")

    def add_runs_dir(self) -> None:
        """Add the option that names the runs folder."""
        self.add_argument(
            "--runs-dir", default="runs", metavar="DIR", help="where the runs are (default: runs)"
        )

    def add_run(self) -> None:
        """Add the argument that names one run, and the runs folder."""
        self.add_argument(
            "run",
            metavar="RUN",
            help="`last`, a run's name as `atrium runs` prints it, its unique end, or its folder",
        )
        self.add_runs_dir()

    def parse(self, argv: list[str]) -> argparse.Namespace | None:
        """The arguments, or None where help was asked for and given."""
        try:
            return self.parse_intermixed_args(argv)  # settings may stand behind options
        except SystemExit:
            return None  # only `--help` leaves this way; mistakes raise


def standard_output() -> Console:
    """The console on stdout; through a pipe its lines are wide, so that tables stay whole."""
    from rich.console import Console  # `atrium doctor` works without it

    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, width=None if is_terminal else _PIPE_WIDTH)


def ask_for_plugins(folder: RunFolder) -> list[str]:
    """Say how this process's plugins differ from those of a run; `ConfigError` where one is missing."""
    recorded, _ = read_object(folder.provenance_file)
    lines = plugins.changes(recorded.get("plugins"))
    for line in lines:
        sys.stderr.write(f"note: {line}\n")
    return lines


@contextmanager
def files_explained() -> Iterator[None]:
    """Turn an `OSError` on a run's files into a `RunFolderError` of one line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise RunFolderError(f"{where}{error.strerror or error}") from error
