"""The records of a document: sentences, tables, figures, and their parts.

A producer such as `compare/document.py` creates a `Document`. `views` renders it in a terminal, as Markdown,
LaTeX or HTML, and draws its figures. Records contain numbers with units, which `views` formats. Texts in
records are plain and may come from a run's settings, so every renderer escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["", "share", "points", "p", "fraction", "ratio", "bound", "count", "seconds", "bytes"]
"""The unit of a number, which determines its format (`document.formatting.value_text`).

Values of the units `share` and `points` are fractions of 1. They are shown in percent but without the percent
sign, so a title must name the unit. `p` is a p-value, and `bound` is a bound on the importance ratio.
"""
Tone = Literal["plain", "better", "worse", "warning", "muted"]
"""The meaning of a sentence or row for the reader, which determines its color."""
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Value:
    """A number, or None if it is unknown. `is_signed` adds a plus sign to a positive number (`+2.1`)."""

    value: float | None
    unit: Unit = ""
    is_signed: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, such as `81.2 [78.0, 84.1]`; without a number, only the interval is shown.

    `is_strong` highlights the best value of a column.
    """

    value: float | None
    interval: Pair | None
    unit: Unit = ""
    is_signed: bool = False
    is_strong: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """The smallest and the largest of several numbers, shown as `100 to 200`.

    If both have the same text after rounding, it is shown only once: `100`.
    """

    low: float
    high: float
    unit: Unit = ""


@dataclass(frozen=True, slots=True)
class Trend:
    """A number over time (`values`, oldest first), shown as a sparkline.

    The dashboard adds a line at `limit` if it is near the values.
    """

    values: tuple[float, ...]
    limit: float | None = None


Cell = str | int | Value | Estimate | Span | Trend | None
"""A cell of a table: text, a count, or a record of numbers; None is shown as a dash."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a document; `key` identifies it across versions of Atrium, such as `verdict/atr`.

    `detail` explains an alert: pages show it after a click, and a terminal prints it as a note.
    """

    text: str
    tone: Tone = "plain"
    key: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """Preformatted text of several lines, such as a sampled answer, a command or a configuration file."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `title` includes the unit.

    A column with `is_text` contains words and is aligned left. A column with `is_prose` contains
    explanations; it is wrapped, and a terminal leaves it out. A narrow terminal also leaves out columns whose
    `priority` is greater than 0, the highest first.
    """

    title: str
    is_text: bool = False
    is_prose: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table; `is_strong` highlights it.

    `place` determines the color of the row's method (see `palette`); None means no color.
    """

    cells: tuple[Cell, ...]
    place: int | None = None
    is_strong: bool = False
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose first column names the rows; `note` is shown below it and explains how to read it.

    A table with a `caption` is for use in a paper: LaTeX output contains it with caption and label, and HTML
    shows its LaTeX code for copying. Terminal and Markdown output leave it out.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    key: str = ""
    caption: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a figure; `title` includes the unit.

    `low` and `high` are the ends of the axis, or None to fit the data. Shares and points are drawn in
    percent. `labels` replace the numbers at the positions 0, 1, 2 and so on.
    """

    title: str = ""
    unit: Unit = ""
    scale: Literal["linear", "log", "log2"] = "linear"
    low: float | None = None
    high: float | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A reference mark: a line at `x` or at `y`, or a shaded range from `x` to `end`.

    `place` determines the color; None means gray.
    """

    name: str = ""
    x: float | None = None
    y: float | None = None
    end: float | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A curve, or a series of points. None in `y` is a gap, and `place` determines the color and the dashes.

    `low` and `high` are the ends of a band, or of whiskers if `has_whiskers` is true. A nonempty `dash`
    overrides the dashes that `place` determines. With `is_step`, a value is constant until the next x, as in
    a histogram.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    place: int = 0
    dash: Literal["", "solid", "dashed", "dotted"] = ""
    is_faint: bool = False
    is_line: bool = True
    has_points: bool = False
    has_whiskers: bool = False
    is_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A row of `Intervals` or `Bars`: a value, an outer and an inner interval, and observations (`dots`).

    `dot_names` contains one name per observation; if it is empty, every observation has the row's name. With
    `is_open`, the markers of the observations are hollow. `place` determines the color.
    """

    name: str
    place: int = 0
    value: float | None = None
    outer: Pair | None = None
    inner: Pair | None = None
    dots: tuple[float, ...] = ()
    dot_names: tuple[str, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A named point in a `Plane`; `place` is the number of its color (see `atrium.document.palette`)."""

    name: str
    x: float
    y: float
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The common fields of all figures; `caption` explains how to read the figure."""

    key: str
    title: str
    caption: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Figure):
    """A figure with curves, optionally with bands or whiskers."""

    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals(Figure):
    """A figure of values with their intervals and observations, one row per value.

    `interval_names` are the names of the outer and the inner interval.
    """

    rows: tuple[Bounds, ...]
    interval_names: tuple[str, str] = ("interval", "inner interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Figure):
    """A figure with one bar per row.

    The outer interval of a bar is pale, and the inner interval is strong.
    """

    rows: tuple[Bounds, ...]
    interval_names: tuple[str, str] = ("interval", "inner interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane(Figure):
    """A figure with named points, drawn over curves."""

    points: tuple[Point, ...]
    curves: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(Figure):
    """A heat map of shares by row and column; `ends` are the labels of the shares 0 and 1."""

    rows: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    ends: tuple[str, str] = ("0 %", "100 %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image file whose panels are figures, `num_columns` per row; `name` is its name without suffix."""

    name: str
    figures: tuple[Figure, ...]
    title: str = ""
    num_columns: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A stored image file, with its path relative to the page; shown only in Markdown."""

    title: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Sentences, figures, tables, passages and images under one title; HTML collapses it if `is_folded`."""

    title: str
    key: str = ""
    sentences: tuple[Sentence, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    passages: tuple[Passage, ...] = ()
    images: tuple[Image, ...] = ()
    is_folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The output of a command or page: an answer, warnings about it (`alerts`), sections, and notes.

    Notes with the tone `warning` concern the shown numbers. Notes with the tone `muted` explain terms; a
    terminal omits them.
    """

    key: str
    title: str
    subtitle: str = ""
    alerts: tuple[Sentence, ...] = ()
    answer: tuple[Sentence, ...] = ()
    sections: tuple[Section, ...] = ()
    notes: tuple[Sentence, ...] = ()


def plain_table(
    title: str,
    titles: Iterable[str],
    rows: Iterable[Row | Sequence[Cell]],
    note: str = "",
    *,
    key: str = "",
    is_text: bool = False,
) -> Table:
    """Return a table whose columns differ only in their titles; `is_text` makes all of them text."""
    return Table(
        title=title,
        key=key,
        note=note,
        columns=tuple(Column(one, is_text=is_text) for one in titles),
        rows=tuple(row if isinstance(row, Row) else Row(tuple(row)) for row in rows),
    )


def table_document(key: str, title: str, *tables: Table) -> Document:
    """Return a document with one section, which contains the tables and has the document's title."""
    return Document(key=key, title=title, sections=(Section(title=title, tables=tables),))
