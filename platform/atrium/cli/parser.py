"""The parser of command lines: common arguments, types, and error messages.

Arguments of the form `key=value` are Hydra overrides of settings; `atrium.config` parses them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from atrium.base.atomic import write_text
from atrium.base.errors import ConfigError, RunFolderError, reason_of
from atrium.config.nearest import is_named, nearest, nearest_key, shown
from atrium.document.formatting import printable

if TYPE_CHECKING:
    from atrium.document.document import Document, Picture


class CommandParser(argparse.ArgumentParser):
    """A parser that raises a one-line `ConfigError` for invalid arguments and for abbreviated options.

    `name` is the subcommand, empty for `atrium` itself. `elsewhere` maps flags of other programs to advice on
    their replacement.
    """

    def __init__(
        self,
        name: str,
        description: str | None = None,
        epilog: str | None = None,
        *,
        has_help: bool = True,
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            prog=f"atrium {name}".strip(),
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=has_help,
        )
        self._elsewhere = elsewhere or {}
        self._settings: Sequence[str] | None = None

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError` with argparse's message, plus an argument's help if its value is missing."""
        raise ConfigError(f"{self.prog}: {message}{self._wanted(message)}; see `{self.prog} --help`")

    def add_overrides(self, own: Sequence[str] = ()) -> None:
        """Accept `key=value` settings of a run. `own` lists the command's own keys, used in suggestions."""
        self._settings = own
        self.add_argument(
            "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings, as for `atrium train`"
        )

    def add_seed_plan(self) -> None:
        """Add --planned-seeds and --looks, which become overrides of the settings with these names."""
        self.add_argument(
            "--planned-seeds",
            dest="flagged",
            action="append",
            type=_planned_seeds,
            metavar="N",
            help="number of seeds per method at which comparisons give their verdict",
        )
        self.add_argument(
            "--looks",
            dest="flagged",
            action="append",
            type=_looks,
            metavar="3,N",
            help="numbers of seeds for interim verdicts",
        )

    def add_runs_dir(self) -> None:
        """Add the option that names the runs directory."""
        self.add_argument(
            "--runs-dir", default="runs", metavar="DIR", help="folder of the runs (default: runs)"
        )

    def add_json(self, content: str) -> None:
        """Add the option that prints JSON instead of a document; `content` is its help."""
        self.add_argument("--json", action="store_true", help=content)

    def add_address(self, port: int, range_: Callable[[str], int], *, meaning: str) -> None:
        """Add --host and --port.

        `port` is the default port, and `meaning` describes this default in the help. `range_` parses the
        value of --port.
        """
        self.add_argument(
            "--host",
            default="127.0.0.1",
            metavar="ADDRESS",
            help="address to listen on (default: 127.0.0.1, this machine only)",
        )
        self.add_argument("--port", type=range_, default=port, metavar="N", help=f"port (default: {meaning})")

    def add_figures(self) -> None:
        """Add the options of a command that prints tables or JSON and draws figures; see `present`."""
        self.add_json("one JSON object instead of tables")
        self.add_argument("--out", metavar="DIR", help="folder of the figures (default: runs/figures)")
        self.add_argument("--no-figures", action="store_true", help="draw nothing")

    def add_run(self) -> None:
        """Add the argument that names one run, and the option that names the runs directory."""
        self.add_argument(
            "run",
            nargs="?",
            metavar="RUN",
            help="`last`, a run's name from `atrium runs`, a unique end of the name, or the run directory",
        )
        self.add_argument(
            "--run", dest="named_run", metavar="RUN", help="the same as RUN, as in `atrium evaluate`"
        )
        self.add_runs_dir()

    def add_checkpoint(self) -> None:
        """Add the options that select a checkpoint of a run; the default is the last one."""
        which = self.add_mutually_exclusive_group()
        which.add_argument(
            "--best", action="store_true", help="the checkpoint with the best validation score"
        )
        which.add_argument(
            "--step", type=whole(0), metavar="N", help="the checkpoint at this step (default: the last)"
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments; `--help` prints the help and raises `SystemExit`, as in argparse."""
        # Settings may follow options.
        arguments, unknown = self.parse_known_intermixed_args(list(argv))
        if unknown:
            self.refuse(unknown[0], argv)
        if "flagged" in arguments:
            arguments.overrides = [*arguments.overrides, *(arguments.flagged or [])]
        if "named_run" in arguments:
            if (arguments.run is None) == (arguments.named_run is None):
                if arguments.run is None:
                    self.error("the following arguments are required: RUN")
                self.error("RUN and --run have the same meaning; give only one of them")
            arguments.run = arguments.run or arguments.named_run
        return arguments

    def refuse(self, word: str, argv: Sequence[str]) -> NoReturn:
        """Raise `ConfigError` for the unknown argument `word` in `argv`.

        For an unknown flag, the message suggests a similar flag or setting if there is one.
        """
        if not word.startswith("-"):
            self.error(f"unrecognized arguments: {shown(word)}")
        said = f"{self.prog} {shown(word)}: unknown flag"
        if (instead := self._elsewhere.get(word.partition("=")[0])) is not None:
            raise ConfigError(f"{said}; {instead}")
        raise ConfigError(f"{said}{self._meant(word, argv) or ';'} `{self.prog} --help` lists the flags")

    def _meant(self, flag: str, argv: Sequence[str]) -> str:
        """Return `; did you mean X?` for an unknown flag, where X is a similar flag or setting.

        A setting with the name of the flag takes precedence. The result is empty if nothing is similar.
        """
        name, _, value = flag.lstrip("-").partition("=")
        flags = [one[2:] for one in self._option_string_actions if one.startswith("--")]
        near = f"; did you mean --{found}?" if (found := nearest(name, flags)) is not None else ""
        if self._settings is None:
            return near
        from atrium.config.help import setting_names

        name = name.replace("-", "_")
        after = argv[place] if (place := list(argv).index(flag) + 1) < len(argv) else ""
        value = value or (after if "=" not in after and not after.startswith("-") else "") or "VALUE"
        setting = nearest_key(name, [*self._settings, *setting_names()])
        as_setting = f"; did you mean {setting}={value}?" if setting is not None else ""
        return as_setting if setting and is_named(setting, name) else near or as_setting

    def _wanted(self, message: str) -> str:
        """Return the help, in parentheses, of the argument whose value is missing according to `message`.

        Returns an empty string if `message` reports another error, or if no such argument is found.
        """
        lacking = re.match(r"argument (\S+): expected|.* required: (\w+)", message)
        name = lacking and (lacking[1] or lacking[2])
        found = [one.help for one in self._actions if name in ("/".join(one.option_strings), one.metavar)]
        return f" ({found[0]})" if name and found else ""


def _planned_seeds(text: str) -> str:
    return f"planned_seeds={_numbers(text, 'a whole number, such as 5', [text])}"


def _looks(text: str) -> str:
    return f"looks=[{_numbers(text, 'whole numbers, such as 3,5', text.split(','))}]"


def _numbers(text: str, expected: str, parts: Sequence[str]) -> str:
    if not all(part.strip().isdecimal() and part.isascii() for part in parts):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return ",".join(part.strip() for part in parts)


def pair_of(form: str) -> Callable[[str], tuple[str, str]]:
    """Return an argparse type that splits an argument such as OLD=NEW at the first `=`.

    `form` describes the expected argument in error messages.
    """

    def pair(text: str) -> tuple[str, str]:
        key, _, value = (printable(part).strip() for part in text.partition("="))
        if not key or not value:
            raise argparse.ArgumentTypeError(f"expected {form}, got {text}")
        return key, value

    return pair


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for whole numbers from `least` to `most`; None means no upper limit."""
    expected = f"a whole number of at least {least}" if most is None else f"{least} to {most}"

    def number(text: str) -> int:
        if re.fullmatch(r"-?[0-9]+", text) is None or not least <= int(text) <= (most or int(text)):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
        return int(text)

    return number


def positive(most: float) -> Callable[[str], float]:
    """Return an argparse type for numbers greater than 0 and at most `most`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0.0 < value <= most:
            raise argparse.ArgumentTypeError(
                f"expected a number greater than 0 and at most {most:g}, got {text}"
            )
        return value

    return number


def points(text: str) -> float:
    """Parse a number of percentage points, more than 0 and at most 100, and return it as a fraction."""
    return positive(100.0)(text) / 100.0


def present(
    arguments: argparse.Namespace,
    found: object,
    document: Callable[[], Document],
    pictures: Callable[[], list[Picture]],
) -> None:
    """Print results as JSON or as a document, and draw figures, according to the options of `add_figures`."""
    from atrium.views.terminal import print_document, print_json, standard_output

    if arguments.json:
        print_json(found)
    else:
        print_document(standard_output(), document())
        sys.stdout.flush()
    if arguments.no_figures or (arguments.json and not arguments.out):
        return
    from atrium.views.figures.sheet import save

    drawn = save(pictures(), Path(arguments.out or "runs/figures"), Path("runs/.cache"))
    if not arguments.json:
        sys.stdout.write("".join(f"drew {path}\n" for path in drawn))


def print_or_write(text: str, path: str | None) -> None:
    """Print a page, or write it to the file `path` and print the path."""
    if path is None:
        sys.stdout.write(text)
        return
    try:
        write_text(Path(path), text)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {reason_of(error)}; choose another --out") from error
    sys.stdout.write(f"wrote {path}\n")


@contextmanager
def files_explained() -> Iterator[None]:
    """Turn an `OSError` on a run's files into a one-line `RunFolderError`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise RunFolderError(
            f"a file of the run cannot be accessed: {where}{reason_of(error)}; check the file and "
            "its permissions"
        ) from error
