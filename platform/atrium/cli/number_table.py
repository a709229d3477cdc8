"""Tables of numbers that are never cut: a narrow terminal gets fewer columns, and is told which."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_GAP = 2


def print_table(
    console: Console,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    dropped_first: Sequence[str] = (),
) -> None:
    """Print rows under their titles, the first column to the left and numbers to the right.

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
