"""Tables of numbers on narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from atrium.tracking.printing import print_numbers

TITLES = ("name", "first", "second", "third")
ROWS = [["a", "1.234567", "2.345678", "3.456789"], ["longer", "1", "", "∞"]]


def printed(width, **options):
    file = io.StringIO()
    print_numbers(Console(file=file, width=width), TITLES, ROWS, **options)
    return file.getvalue()


def test_numbers_are_never_cut():
    for width in (10, 20, 38, 200):
        text = printed(width)
        assert "…" not in text
        assert all(cell in text for row in ROWS for cell in row)


@pytest.mark.parametrize(("width", "gone"), [(200, []), (30, ["third"]), (20, ["third", "first"])])
def test_a_narrow_terminal_gets_fewer_columns_and_is_told_which(width, gone):
    text = printed(width, dropped_first=("third", "first"))
    table, _, note = text.partition("a wider terminal also shows: ")
    assert [title for title in ("third", "first") if title in note] == gone
    assert {title for title in TITLES if title in table} == set(TITLES) - set(gone)
    assert "2.345678" in table
