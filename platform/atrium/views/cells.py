"""Formatting of table cells as text, shared by all views."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.document.document import Cell, Column, Estimate, Row, Span, Table, Trend, Value
from atrium.document.formatting import DASH, interval_text, sparkline, value_text

_TREND_WIDTH = 32


def cell_text(cell: Cell) -> str:
    """Return the text of a cell, formatted by its unit. An unknown value becomes a dash."""
    match cell:
        case str():
            return cell
        case int():
            return value_text(cell, "count")
        case Value():
            return value_text(cell.value, cell.unit, is_signed=cell.is_signed)
        case Estimate():
            return " ".join(estimate_parts(cell)) or DASH
        case Span():
            low, high = (value_text(end, cell.unit) for end in (cell.low, cell.high))
            return low if low == high else f"{low} to {high}"
        case Trend():
            return sparkline(cell.values, width=_TREND_WIDTH)
        case _:
            return DASH


def estimate_parts(cell: Estimate) -> list[str]:
    """Return the texts of an estimate's value and interval, without those that are unknown."""
    value = [] if cell.value is None else [value_text(cell.value, cell.unit, is_signed=cell.is_signed)]
    if cell.interval is None:
        return value
    return [*value, interval_text(cell.interval, cell.unit, is_signed=cell.is_signed)]


def texts(rows: Sequence[Row]) -> list[list[str]]:
    """Return the text of all cells, row by row."""
    return [[cell_text(cell) for cell in row.cells] for row in rows]


def number_columns(table: Table) -> list[bool]:
    """Return, for each column, whether it is right-aligned.

    All columns are right-aligned except the first one and columns of words.
    """
    return [
        bool(place) and not (column.is_text or column.is_prose) for place, column in enumerate(table.columns)
    ]


def without_prose(table: Table) -> tuple[tuple[Column, ...], list[list[str]]]:
    """Return the columns that contain no prose, and the texts of their cells, row by row."""
    kept = [place for place, column in enumerate(table.columns) if not column.is_prose]
    rows = [[row[place] for place in kept] for row in texts(table.rows)]
    return tuple(table.columns[place] for place in kept), rows
