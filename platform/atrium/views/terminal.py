"""What commands print: documents, lines, tables, JSON. Text that was recorded cannot steer the terminal."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atrium.base.atomic import standard_json
from atrium.document.document import Document, Section, Tone
from atrium.document.formatting import printable
from atrium.views.cells import without_prose

_GAP = 2
_PIPE_WIDTH = 160
_STYLES: Mapping[Tone, str] = {
    "plain": "",
    "better": "green",
    "worse": "red",
    "warning": "yellow",
    "muted": "dim",
}


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


def tell(console: Console, text: str, style: str = "", *, indent: int = 0) -> None:
    """Print a sentence: a terminal breaks it between words, a pipe gets it as one line."""
    if console.is_terminal:
        console.print(Padding(Text(printable(text), style), (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent + printable(text), style), soft_wrap=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say what a terminal waits for while it does, with a clock that moves."""
    console = standard_output()
    if not console.is_terminal:
        yield
        return
    from rich.progress import Progress, TextColumn, TimeElapsedColumn  # most commands wait for nothing

    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        shown.add_task(what, total=None)
        yield


def print_json(value: object) -> None:
    """Print what `--json` promises: standard JSON, in which NaN and infinities are text."""
    sys.stdout.write(json.dumps(standard_json(value), indent=2, allow_nan=False) + "\n")


def print_document(console: Console, document: Document) -> None:
    """Print a document: alerts, the answer, tables, passages, and the notes about these numbers.

    Figures, tables for papers, columns of words and notes that explain terms are for other media.
    """
    for sentence in document.alerts:
        tell(console, sentence.text, "yellow")
    if document.alerts and (document.answer or document.sections):
        console.print()
    for sentence in document.answer:
        tell(console, sentence.text, "bold")
    if document.answer:
        console.print()
    for section in document.sections:
        _print_section(console, section)
    for note in document.notes:
        if note.tone != "muted":
            tell(console, f"note: {note.text}", _STYLES[note.tone])


def _print_section(console: Console, section: Section) -> None:
    for sentence in section.sentences:
        tell(console, sentence.text, _STYLES[sentence.tone])
    for table in section.tables:
        if not table.caption:
            columns, rows = without_prose(table)
            strong = [row[0] for row, given in zip(rows, table.rows, strict=True) if given.is_strong]
            tell(console, table.title, "bold cyan")
            print_table(console, [column.title for column in columns], rows, strong=strong)
            if table.note:
                tell(console, table.note, "dim")
            console.print()
    for passage in section.passages:
        if passage.title:
            tell(console, passage.title, "bold cyan")
        say(console, passage.text)


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


def print_table(
    console: Console,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    is_text: bool = False,
    strong: Collection[str] = (),
) -> None:
    """Print rows whose first cell is a name of any length, and split no word or number of them.

    Where a name leaves too little room for its numbers, they stand below it; columns that find no room
    there follow as a table of their own. A pipe gets one line per row. Numbers stand on the right of their
    columns and text (`is_text`) on the left; rows of the names `strong` are bold.
    """
    room = console.width if console.is_terminal else sys.maxsize
    texts = [[printable(cell) for cell in row] for row in rows]
    columns = [
        _Column(title, [row[place] for row in texts], fits=_needed(titles, texts) <= room)
        for place, title in enumerate(titles)
    ]
    rest = columns[1:]
    while rest:
        num = _num_fitting(rest, room - _GAP)
        block = _Block([columns[0], *rest[:num]], room, is_text=is_text)
        block.print(console, strong)
        rest = rest[num:]


class _Column:
    """A column's cells, and its title in one line, or in as many as keep it as narrow as they are."""

    def __init__(self, title: str, cells: Sequence[str], *, fits: bool) -> None:
        widest = max((cell_len(cell) for cell in cells), default=0)
        longest = max((cell_len(word) for word in title.split()), default=0)
        self.cells = cells
        self.title = [title] if fits or not title else textwrap.wrap(title, max(widest, longest))
        self.width = max(widest, *map(cell_len, self.title))


def _needed(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The columns of a terminal that a table takes with every title in one line."""
    widths = [max(map(cell_len, cells)) for cells in zip(titles, *rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)


def _num_fitting(columns: Sequence[_Column], room: int) -> int:
    """How many of the columns stand beside each other, at least one."""
    taken = 0
    for num, column in enumerate(columns):
        taken += column.width + (_GAP if num else 0)
        if taken > room:
            return max(num, 1)
    return len(columns)


class _Block:
    """The names with some columns: beside them, or below each where there is no room."""

    def __init__(self, columns: Sequence[_Column], room: int, *, is_text: bool) -> None:
        self._columns = columns
        names, *rest = columns
        self._is_beside = names.width + sum(_GAP + column.width for column in rest) <= room
        self._widths = [names.width if self._is_beside else 0, *(column.width for column in rest)]
        self._is_text = is_text

    def print(self, console: Console, strong: Collection[str]) -> None:
        titled = self._columns if self._is_beside else self._columns[1:]
        height = max(len(column.title) for column in titled)
        titles = [[""] * (height - len(column.title)) + column.title for column in titled]
        names = self._columns[0]
        if not self._is_beside:
            titles.insert(0, [""] * height)
            console.print(Text(" ".join(names.title), "bold"))
        for cells in zip(*titles, strict=True):
            console.print(Text(self._line(cells), "bold"), soft_wrap=True)
        for name, *rest in zip(*(column.cells for column in self._columns), strict=True):
            style = "bold" if name in strong else ""
            if not self._is_beside:
                console.print(Text(name, style))
            console.print(Text(self._line([name if self._is_beside else "", *rest]), style), soft_wrap=True)

    def _line(self, cells: Sequence[str]) -> str:
        parts = []
        for place, (text, width) in enumerate(zip(cells, self._widths, strict=True)):
            padding = " " * (width - cell_len(text))
            gap = " " * _GAP if place else ""
            parts.append(gap + (text + padding if self._is_text or not place else padding + text))
        return "".join(parts).rstrip()


def _padded(text: str, width: int, is_first: bool) -> str:
    """The cell and the gap after it, padded to this width: after the first column's, before the others'."""
    padding = " " * (width - _GAP - cell_len(text))
    return (text + padding if is_first else padding + text) + " " * _GAP
