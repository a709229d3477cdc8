r"""Output of commands on stdout: documents, sentences, tables, and JSON.

Control characters in recorded text are printed as escape codes, such as `\x1b`.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from atrium.base.atomic import standard_json
from atrium.document.document import Column, Document, Passage, Section, Sentence, Table, Tone
from atrium.document.formatting import printable
from atrium.views.cells import without_prose

_GAP = 2
_PIPE_WIDTH = 160
_TEXT_WIDTH = 60
"""The largest width of a column of text in a terminal, in characters; longer text is wrapped."""
_MIN_TEXT_WIDTH = 20
"""The smallest width, in characters, to which a column of text is narrowed."""
_TITLE = "bold cyan"
_STYLES: Mapping[Tone, str] = {
    "plain": "",
    "better": "green",
    "worse": "red",
    "warning": "yellow",
    "muted": "dim",
}


def standard_output() -> Console:
    """Return a console that writes to stdout. If stdout is not a terminal, it is 160 characters wide."""
    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, width=None if is_terminal else _PIPE_WIDTH)


def say(console: Console, text: str, style: str = "") -> None:
    """Print text without wrapping its lines, so that they can be copied."""
    console.print(Text(printable(text), style), soft_wrap=True)


def tell(console: Console, text: str, style: str = "", *, indent: int = 0) -> None:
    """Print a sentence. In a terminal, it is wrapped between words; in a pipe, it stays on one line."""
    if console.is_terminal:
        console.print(Padding(Text(printable(text), style), (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent + printable(text), style), soft_wrap=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show the text `what` and the elapsed time while the block runs. In a pipe, nothing is shown."""
    console = standard_output()
    if not console.is_terminal:
        yield
        return
    from rich.progress import Progress, TextColumn, TimeElapsedColumn  # slow import, rarely needed

    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        shown.add_task(what, total=None)
        yield


def print_json(value: object) -> None:
    """Print standard JSON for `--json`, with NaN and infinities as text."""
    sys.stdout.write(json.dumps(standard_json(value), indent=2, allow_nan=False) + "\n")


def print_document(console: Console, document: Document) -> None:
    """Print a document: alerts, the answer, tables, passages, and notes about the numbers.

    The details of alerts are printed as notes. Figures, tables with a caption, columns of prose, and muted
    notes are left out.
    """
    blocks = [block for section in document.sections for block in _blocks(console, section)]
    if document.answer:
        blocks.insert(0, partial(_print_sentences, console, "", document.answer, "bold"))
    if document.alerts:
        blocks.insert(0, partial(_print_sentences, console, "", document.alerts, "yellow"))
    notes = [replace(alert, text=alert.detail) for alert in document.alerts if alert.detail]
    notes += [note for note in document.notes if note.tone != "muted"]
    if notes:
        notes = [replace(note, text=f"note: {note.text}") for note in notes]
        blocks.append(partial(_print_sentences, console, "", notes))
    for place, block in enumerate(blocks):
        if place:
            console.print()
        block()


def _blocks(console: Console, section: Section) -> Iterator[partial[None]]:
    """Yield, for each part of a section, a function that prints it.

    The caller prints the empty lines between the parts.
    """
    if section.sentences:
        yield partial(_print_sentences, console, section.title, section.sentences)
    for table in section.tables:
        if not table.caption:
            yield partial(print_table, console, table)
    for passage in section.passages:
        yield partial(_print_passage, console, passage)


def _print_sentences(
    console: Console, title: str, sentences: Iterable[Sentence], style: str | None = None
) -> None:
    """Print sentences under a title, each in the style of its tone, or all in `style` if given."""
    if title:
        tell(console, title, _TITLE)
    for sentence in sentences:
        tell(console, sentence.text, _STYLES[sentence.tone] if style is None else style)


def _print_passage(console: Console, passage: Passage) -> None:
    if passage.title:
        tell(console, passage.title, _TITLE)
    say(console, passage.text)


def print_table(console: Console, table: Table) -> None:
    """Print a table whose first column names the rows, without splitting a name or number.

    In a pipe, each row is one line. If a terminal is too narrow, columns with a `priority` above 0 are left
    out as needed, the largest number first. If the table is still too wide, text is wrapped. If that is not
    enough, the cells of a row are printed below its name, if necessary in several blocks of columns.
    """
    if table.title:
        tell(console, table.title, _TITLE)
    room = console.width if console.is_terminal else sys.maxsize
    kept, rows = without_prose(table)
    columns = [_Column(column, [row[place] for row in rows], room) for place, column in enumerate(kept)]
    left_out = []
    while _width(columns) > room and (spare := max(columns, key=lambda one: one.priority)).priority:
        columns.remove(spare)
        left_out += spare.title
    if _width(columns) > room:
        for column in columns:
            column.wrap_title()
        _narrow(columns, room)
    styles = ["bold" if row.is_strong else _STYLES[row.tone] for row in table.rows]
    names, *rest = columns
    while rest:
        num = max(sum(_width(rest[: end + 1]) <= room - _GAP for end in range(len(rest))), 1)
        _print_block(console, names, rest[:num], room, styles)
        rest = rest[num:]
    if left_out:
        tell(console, f"a wider terminal also shows: {', '.join(left_out)}", "dim")
    if table.note:
        tell(console, table.note, "dim")


class _Column:
    """A column of a printed table. The title and each cell are lists of lines."""

    def __init__(self, column: Column, cells: Iterable[str], room: int) -> None:
        self.title = [printable(column.title)]
        self.texts = [printable(cell).replace("\n", " ") for cell in cells]
        self.cells = [[text] for text in self.texts]
        self.is_text = column.is_text
        self.priority = column.priority
        if column.is_text and room < sys.maxsize:
            self.wrap(min(room, _TEXT_WIDTH))

    @property
    def width(self) -> int:
        return max(cell_len(line) for lines in (self.title, *self.cells) for line in lines)

    @property
    def min_width(self) -> int:
        """The smallest width of the column: its longest word if it is text, otherwise its full width."""
        if not self.is_text:
            return self.width
        return max(cell_len(word) for text in (*self.title, *self.texts) for word in text.split() or [""])

    def wrap(self, width: int) -> None:
        """Break the cells between words into lines of at most `width` characters. Longer words are split."""
        self.cells = [
            [text] if cell_len(text) <= width else textwrap.wrap(text, width) for text in self.texts
        ]

    def wrap_title(self) -> None:
        """Break the title between words, into lines no wider than the widest cell.

        If a word of the title is wider than all cells, the lines may be as wide as this word.
        """
        (title,) = self.title
        widths = [cell_len(line) for lines in (title.split(), *self.cells) for line in lines]
        self.title = textwrap.wrap(title, max(widths)) or self.title


def _width(columns: Sequence[_Column]) -> int:
    """Return the width in characters of a line with all columns, including the gaps between them."""
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _narrow(columns: Sequence[_Column], room: int) -> None:
    """Wrap text until the columns fit in `room` characters.

    Does nothing if words would have to be split, or columns made narrower than `_MIN_TEXT_WIDTH`.
    """
    spare = [max(column.width - max(column.min_width, _MIN_TEXT_WIDTH), 0) for column in columns]
    missing = _width(columns) - room
    if missing > sum(spare):
        return
    for num, column in sorted(zip(spare, columns, strict=True), key=lambda one: one[0], reverse=True):
        column.wrap(column.width - min(num, missing))
        missing = max(_width(columns) - room, 0)


def _print_block(
    console: Console, names: _Column, rest: Sequence[_Column], room: int, styles: Sequence[str]
) -> None:
    """Print the columns `rest` next to the row names, or below each name if `room` is too narrow."""
    is_beside = _width([names, *rest]) <= room
    shown = [names, *rest] if is_beside else rest
    height = max(len(column.title) for column in shown)
    rows = [([[""] * (height - len(column.title)) + column.title for column in shown], names.title, "bold")]
    rows += [
        ([column.cells[place] for column in shown], names.cells[place], style)
        for place, style in enumerate(styles)
    ]
    for cells, name, style in rows:
        if not is_beside:
            console.print(Text(" ".join(name), style))
        for texts in zip_longest(*cells, fillvalue=""):
            parts = []
            for text, column in zip(texts, shown, strict=True):
                padding = " " * (column.width - cell_len(text))
                is_left = column.is_text or column is names
                parts.append(text + padding if is_left else padding + text)
            line = (" " * _GAP).join(parts if is_beside else ["", *parts]).rstrip()
            console.print(Text(line, style), soft_wrap=True)
