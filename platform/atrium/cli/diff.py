"""`atrium diff`: where two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from atrium.cli.parser import CommandParser, files_explained
from atrium.document.formatting import printable
from atrium.runs.find import find_run
from atrium.views.terminal import print_json, say, standard_output

if TYPE_CHECKING:
    from rich.console import Console

    from atrium.compare.run_differences import RunDifferences

_MAX_LINES = 60
_LINE_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def main_diff(argv: list[str]) -> int:
    """Print where two runs differ; always 0, as a difference is no failure."""
    parser = CommandParser(
        "diff", "List where two runs differ: settings, code (commit and uncommitted changes), environment."
    )
    for place in ("first", "second"):
        parser.add_argument(place, metavar="RUN", help="a run's name as `atrium runs` prints it, or its end")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--all", action="store_true", help="all lines of a long difference in code")
    parser.add_runs_dir()
    arguments = parser.parse(argv)
    from atrium.compare.run_differences import run_differences  # numpy, for the dashboard's settings

    with files_explained():
        one, other = (find_run(arguments.runs_dir, name) for name in (arguments.first, arguments.second))
        found = run_differences(one, other)
    if arguments.json:
        print_json(asdict(found))
    else:
        _print_differences(found, (one.name, other.name), standard_output(), show_all=arguments.all)
    return 0


def _print_differences(
    found: RunDifferences, names: tuple[str, str], console: Console, *, show_all: bool
) -> None:
    from rich.text import Text

    sections = {"settings": found.settings, "code": found.code, "environment": found.environment}
    for title, differences in sections.items():
        if differences:
            _print_differing(title, differences, names, console)
    if found.code_diff:
        console.print(Text("uncommitted changes", "bold cyan"))
        shown = found.code_diff if show_all else found.code_diff[:_MAX_LINES]
        for line in shown:
            say(console, line, _LINE_STYLES.get(line[:1], ""))
        if more := len(found.code_diff) - len(shown):
            console.print(f"… {more} more lines; --all shows them")
    if found.is_empty:
        console.print("nothing that was recorded differs")
    for problem in found.problems:
        say(console, problem, "yellow")


def _print_differing(
    title: str, differences: Mapping[str, tuple[str, str]], names: tuple[str, str], console: Console
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (title, *names):
        table.add_column(Text(printable(name)), overflow="fold", max_width=60)
    for key, values in differences.items():
        table.add_row(*(Text(printable(cell)) for cell in (key, *values)))
    console.print(table)
    console.print()
