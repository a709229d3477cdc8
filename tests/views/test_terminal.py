"""Tables and sentences on narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from atrium.views import terminal as printing
from atrium.views.terminal import print_numbers, print_table, tell, waiting

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


LONG = [
    ["grpo and a setting that is long", "-43.8", "[-57.8, -29.7]", "0.001"],
    ["atr", "+3.1", "[+1.2, +5.0]", "0.012"],
]


def table(width, *, is_terminal=True, rows=LONG, **options):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, color_system=None)
    print_table(console, ["arm", "difference", "another exam", "p"], rows, **options)
    return file.getvalue().splitlines()


def test_names_stand_beside_their_numbers_where_there_is_room_and_above_them_elsewhere():
    assert table(80)[1] == LONG[0][0] + "       -43.8  [-57.8, -29.7]  0.001"
    narrow = table(40)
    assert narrow[2:4] == [LONG[0][0], "       -43.8  [-57.8, -29.7]  0.001"]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 200])
def test_no_cell_of_a_table_is_split_or_lost_at_any_width(width):
    lines = table(width)
    assert all(any(cell in line for line in lines) for row in LONG for cell in row[1:])
    words = {
        word for row in (*LONG, ["arm difference another exam p"]) for cell in row for word in cell.split()
    }
    assert {word for line in lines for word in line.split()} <= words


def test_a_pipe_gets_one_line_per_row_however_long():
    rows = [["a name " * 40, *LONG[0][1:]], LONG[1]]
    lines = table(80, is_terminal=False, rows=rows)
    assert len(lines) == 3
    assert len(lines[1]) > 280


def test_a_sentence_breaks_between_words_in_a_terminal_alone():
    sentence = "not distinguishable; differences larger than 21.8 points are ruled out"
    for is_terminal, num_lines in ((True, 3), (False, 1)):
        file = io.StringIO()
        console = Console(file=file, width=32, force_terminal=is_terminal, color_system=None)
        tell(console, sentence, indent=2)
        lines = file.getvalue().splitlines()
        assert all(line.startswith("  ") and line[2] != " " for line in lines)
        assert len(lines) == num_lines
        assert " ".join(" ".join(lines).split()) == sentence


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_told_what_is_waited_for_and_a_pipe_gets_nothing(monkeypatch, is_terminal):
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=is_terminal)
    monkeypatch.setattr(printing, "standard_output", lambda: console)
    with waiting("loading torch"):
        pass
    assert ("loading torch" in file.getvalue()) == is_terminal
