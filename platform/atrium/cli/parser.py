"""What the commands share: how they read their arguments, name a run, and say that a file is in the way."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from atrium.base import plugins
from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.recorded import read_object

if TYPE_CHECKING:
    from atrium.runs.run_folder import RunFolder


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

    def add_figures(self) -> None:
        """Add the options of a command that prints tables, or JSON, and draws; see `draw`."""
        self.add_argument("--json", action="store_true", help="one JSON object instead of tables")
        self.add_argument("--out", metavar="DIR", help="where to draw (default: runs/figures)")
        self.add_argument("--no-figures", action="store_true", help="draw nothing")

    def add_run(self) -> None:
        """Add the argument that names one run, and the runs folder."""
        self.add_argument(
            "run",
            nargs="?",
            metavar="RUN",
            help="`last`, a run's name as `atrium runs` prints it, its unique end, or its folder",
        )
        self.add_argument(
            "--run", dest="named_run", metavar="RUN", help="the same, as `atrium evaluate` has it"
        )
        self.add_runs_dir()

    def add_checkpoint(self) -> None:
        """Add the options that choose among a run's checkpoints, of which the last is the default."""
        which = self.add_mutually_exclusive_group()
        which.add_argument("--best", action="store_true", help="the checkpoint that was best on validation")
        which.add_argument(
            "--step", type=int, metavar="N", help="the checkpoint at this step (default: the last)"
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments; `--help` is answered and raises `SystemExit`, as argparse has it."""
        arguments = self.parse_intermixed_args(list(argv))  # settings may stand behind options
        if "named_run" in arguments:
            if (arguments.run is None) == (arguments.named_run is None):
                if arguments.run is None:
                    self.error("the following arguments are required: RUN")
                self.error("RUN and --run mean the same; give one")
            arguments.run = arguments.run or arguments.named_run
        return arguments


def draw(arguments: argparse.Namespace, figures: Callable[[Path], Iterable[Path]]) -> None:
    """Draw what `figures` draws into a folder, as the options of `add_figures` say, and print the files."""
    if arguments.no_figures or (arguments.json and not arguments.out):
        return
    drawn = figures(Path(arguments.out or "runs/figures"))
    if not arguments.json:
        sys.stdout.write("".join(f"drew {path}\n" for path in drawn))


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
