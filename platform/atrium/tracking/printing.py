"""What commands print: lines, tables, JSON. Text that was recorded cannot steer the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atrium.tracking.atomic import standard_json
from atrium.tracking.formatting import printable

_GAP = 2
_PIPE_WIDTH = 160


def standard_output() -> Console:
    """The console on stdout; through a pipe its lines are wide, so that tables stay whole."""
    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, width=None if is_terminal else _PIPE_WIDTH)


def cell(text: str) -> Text:
    """Text as it is for a table: no markup is read in it, and it cannot steer the terminal."""
    return Text(printable(text), overflow="fold")


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line, which is never broken, so that it can be copied."""
    console.print(Text(printable(text), style), soft_wrap=True)


def print_json(value: object) -> None:
    """Print what `--json` promises: standard JSON, in which NaN and infinities are text."""
    sys.stdout.write(json.dumps(standard_json(value), indent=2, allow_nan=False) + "\n")


def print_cells(
    console: Console,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    margins: tuple[int, int] = (0, 0),
    wraps: bool = False,
) -> None:
    """Print rows of text under their titles, `margins` empty lines above and below them.

    A cell that is too wide is folded, but under a title that is not: `wraps` says that those may be, too.
    """
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=not wraps)
    for row in rows:
        table.add_row(*map(cell, row))
    console.print(Padding(table, (margins[0], 0, margins[1], 2), expand=False))


def print_numbers(
    console: Console,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    dropped_first: Sequence[str] = (),
) -> None:
    """Print rows of numbers that are never cut: a narrow terminal gets fewer columns, and is told which.

    Where they are too wide for the console, the columns of `dropped_first` go, in that order; what is too
    wide even so runs over.
    """
    widths = {
        title: max(cell_len(title), *(cell_len(row[index]) for row in rows)) + _GAP
        for index, title in enumerate(titles)
    }
    dropped: list[str] = []
    for title in dropped_first:
        if sum(widths.values()) > console.width:
            del widths[title]
            dropped.append(title)
    for cells, style in ((titles, "bold"), *((row, "") for row in rows)):
        parts = [cells[titles.index(title)] for title in widths]
        line = "".join(map(_padded, parts, widths.values(), (title == titles[0] for title in widths)))
        # Not a table of rich's, which would cut numbers that do not fit.
        console.print(Text(line.rstrip(), style), soft_wrap=True)
    if dropped:
        text = f"a wider terminal also shows: {', '.join(dropped)}"
        console.print(Text(text, "dim"), soft_wrap=True)


def _padded(text: str, width: int, is_first: bool) -> str:
    """The cell and the gap after it, padded to this width: after the first column's, before the others'."""
    padding = " " * (width - _GAP - cell_len(text))
    return (text + padding if is_first else padding + text) + " " * _GAP
