"""The records of a document: sentences, tables and figures, as data.

A producer (`compare/document.py`) makes a `Document`, and `views` renders it in a terminal, in Markdown,
LaTeX and HTML and as figures. A record holds numbers with their unit; only `views` turns them into text.
Texts in records are plain: they may come from a run's settings, and every renderer escapes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["", "share", "points", "p", "fraction", "ratio", "bound", "count", "seconds", "bytes"]
"""The unit of a number, which determines its digits (`document.formatting.value_text`).

Shares and points are fractions of 1 and shown in percent, which a title has to say; `p` is a p-value, `bound`
an end of a window of ratios.
"""
Tone = Literal["plain", "better", "worse", "warning", "muted"]
"""The meaning of a sentence for a reader, from which a renderer chooses the color."""
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Value:
    """A number, or None for an unknown one. `is_signed` is for differences: `+2.1`."""

    value: float | None
    unit: Unit = ""
    is_signed: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, `81.2 [78.0, 84.1]`; without a value the interval alone.

    `is_strong` marks the best of a column.
    """

    value: float | None
    interval: Pair | None
    unit: Unit = ""
    is_signed: bool = False
    is_strong: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """The smallest and largest of several numbers, `100 to 200`; a single one if they are equal."""

    low: float
    high: float
    unit: Unit = ""


@dataclass(frozen=True, slots=True)
class Trend:
    """The course of a number over time: a sparkline in a terminal."""

    values: tuple[float, ...]


Cell = str | int | Value | Estimate | Span | Trend | None
"""A cell of a table: text, a count, a number of a unit; None is shown as a dash."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A statement. `key` stays the same between versions, such as `verdict/atr`."""

    text: str
    tone: Tone = "plain"
    key: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """Text of several lines shown as it is: a sample of a model, a command to copy, a configuration file."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title, which names the unit.

    `is_text` marks words, which are aligned left; explanations (`is_prose`) are wrapped, and left out in a
    terminal. A narrow terminal leaves out columns with a `priority`, the highest first.
    """

    title: str
    is_text: bool = False
    is_prose: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row's cells. `place` selects the color of its method; `is_strong` marks the row of interest."""

    cells: tuple[Cell, ...]
    place: int | None = None
    is_strong: bool = False
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. Its first column names the rows; `note` below explains how to read it.

    A table with a `caption` is meant for a paper: LaTeX gives it a caption and a label, and HTML shows it as
    LaTeX to copy; a terminal and Markdown leave it out.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    key: str = ""
    caption: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis: its title with the unit, its scale, and its ends if they are fixed.

    Shares and points are drawn in percent. `labels` name the positions 0, 1, 2 and so on.
    """

    title: str = ""
    unit: Unit = ""
    scale: Literal["linear", "log", "log2"] = "linear"
    low: float | None = None
    high: float | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A reference: a line at x or at y, or a shaded range from x to `end`; gray without a `place`."""

    name: str = ""
    x: float | None = None
    y: float | None = None
    end: float | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A curve, or points. `place` is its color; None in `y` is a gap.

    `low` and `high` are the ends of a band, or of whiskers. `dash` is that of the place unless given. With
    `is_step` a value holds until the next x, as in a histogram.
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
    """A row of a figure: a value, an outer and an inner interval, single observations (`dots`)."""

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
    """A named point of a plane."""

    name: str
    x: float
    y: float
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Common fields of all figures. `caption` explains how to read it."""

    key: str
    title: str
    caption: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Figure):
    """Curves with bands or whiskers."""

    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals(Figure):
    """A row for each value, with its intervals and its observations."""

    rows: tuple[Bounds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Figure):
    """A bar for each row: pale over its outer interval, strong over its inner one."""

    rows: tuple[Bounds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane(Figure):
    """Named points, and curves below them."""

    points: tuple[Point, ...]
    curves: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(Figure):
    """A share by row and column, shown by the strength of a color."""

    rows: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Figures as the panels of one file: its name without an ending, its title, the panels of a row."""

    name: str
    figures: tuple[Figure, ...]
    title: str = ""
    num_columns: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A stored picture by its path relative to the page; shown in Markdown only."""

    title: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Sentences, figures, tables, passages and images under one title; a page in HTML folds some."""

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
    """An output: the answer, warnings about it (`alerts`), sections, and explanations (`notes`).

    Notes about these numbers have the tone `warning`; `muted` ones explain terms, and a terminal omits them.
    """

    key: str
    title: str
    subtitle: str = ""
    alerts: tuple[Sentence, ...] = ()
    answer: tuple[Sentence, ...] = ()
    sections: tuple[Section, ...] = ()
    notes: tuple[Sentence, ...] = ()
