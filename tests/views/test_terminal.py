"""Tables and sentences on narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from atrium.document.document import Column, Row, Table
from atrium.views import terminal as printing
from atrium.views.terminal import print_table, tell, waiting

LONG = [
    ["grpo and a setting that is long", "-43.8", "[-57.8, -29.7]", "0.001"],
    ["atr", "+3.1", "[+1.2, +5.0]", "0.012"],
]


def table(width, *, is_terminal=True, rows=LONG, priorities=(0, 0, 0, 0)):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, color_system=None)
    titles = ("arm", "difference", "new problems", "p")
    columns = tuple(Column(title, priority=num) for title, num in zip(titles, priorities, strict=True))
    rows = tuple(Row(tuple(row)) for row in rows)
    print_table(console, Table(title="", columns=columns, rows=rows))
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "gone"), [(80, []), (63, ["p"]), (50, ["p", "difference"])])
def test_narrow_terminal_leaves_out_columns_by_priority_and_says_which(width, gone):
    titles, *_, last = table(width, rows=[LONG[0]], priorities=(0, 1, 0, 2))
    assert titles.split() == [one for one in ("arm", "difference", "new", "problems", "p") if one not in gone]
    assert last.endswith(f"a wider terminal also shows: {', '.join(gone)}" if gone else "0.001")


def test_long_text_is_wrapped_in_a_terminal_and_not_in_a_pipe():
    reason = "the answer has another value than the reference " * 3
    given = Table(
        title="", columns=(Column("sample"), Column("reason", is_text=True)), rows=(Row(("0", reason)),)
    )
    for is_terminal, num_lines in ((True, 4), (False, 2)):
        file = io.StringIO()
        print_table(Console(file=file, width=80, force_terminal=is_terminal, color_system=None), given)
        assert len(file.getvalue().splitlines()) == num_lines
        assert file.getvalue().split()[3:] == reason.split()


def test_names_stand_beside_their_numbers_where_there_is_room_and_above_them_elsewhere():
    assert table(80)[1] == LONG[0][0] + "       -43.8  [-57.8, -29.7]  0.001"
    narrow = table(40)
    assert narrow[2:4] == [LONG[0][0], "       -43.8  [-57.8, -29.7]  0.001"]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 200])
def test_no_cell_of_a_table_is_split_or_lost_at_any_width(width):
    lines = table(width)
    assert all(any(cell in line for line in lines) for row in LONG for cell in row[1:])
    words = {
        word for row in (*LONG, ["arm difference new problems p"]) for cell in row for word in cell.split()
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
