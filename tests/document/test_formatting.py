from __future__ import annotations

import math

import pytest

from atrium.document.formatting import (
    age,
    duration,
    number,
    printable,
    share,
    shortened,
    size,
    span,
    sparkline,
    value_text,
)


def test_a_sparkline_rises_and_falls_with_its_values():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3, 1, 2]) == "█▁▅"


def test_a_sparkline_is_never_wider_than_asked_and_averages_what_it_merges():
    assert len(sparkline(list(range(1000)), width=40)) == 40
    assert sparkline([0, 2, 10, 10], width=2) == "▁█"
    assert sparkline([5], width=40) == "▁"


def test_a_sparkline_shows_gaps_and_flat_curves_as_such():
    assert sparkline([0, math.nan, 1]) == "▁ █"
    assert sparkline([0.4] * 7 + [0.4 + 1e-16]) == "▁" * 8
    assert sparkline([math.nan, math.inf]) == ""
    assert sparkline([]) == ""


def test_numbers_fit_in_nine_characters():
    values = [0.0, 1.0, 0.123456, 12.3456, 999.7, 1234.5, 99_999.0, 123_456.0, 1e-9, -0.00012345]
    values += [1e300, math.inf]
    assert [number(value) for value in values[:7]] == ["0", "1", "0.123", "12.3", "1000", "1234", "99999"]
    assert all(len(number(value)) <= 9 for value in values)
    assert (number(None), number(math.nan)) == ("–", "–")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.8125, "share", "81.2"),
        (-0.0312, "points", "−3.1"),
        (-0.0001, "points", "0.0"),
        (0.0004, "p", "<0.001"),
        (0.25, "p", "0.250"),
        (1.2306, "ratio", "1.231"),
        (0.8001744, "bound", "0.800174"),
        (math.inf, "bound", "∞"),
        (12345, "count", "12,345"),
        (0.28, "seconds", "0.3 s"),
        (205, "seconds", "3:25"),
        (404_000, "bytes", "404 kB"),
        (0.123456, "", "0.123"),
        (math.nan, "share", "–"),
    ],
)
def test_unit_of_a_number_decides_its_digits(value, unit, text):
    assert value_text(value, unit) == text


def test_only_differences_above_zero_get_a_plus_sign():
    texts = [value_text(value, "points", is_signed=True) for value in (0.021, 0.0, -0.021)]
    assert texts == ["+2.1", "0.0", "−2.1"]
    texts = [value_text(value, "seconds", is_signed=True) for value in (0.4, 0.0, -0.01)]
    assert [*texts, value_text(0.0, "bytes", is_signed=True)] == ["+0.4 s", "0.0 s", "0.0 s", "0 B"]


def test_shares_and_intervals_are_in_percent():
    assert (share(0.8819), share(0.0), share(None), share(math.nan)) == ("88.2 %", "0.0 %", "–", "–")
    assert (span((0.849, 0.915)), span(None)) == ("[84.9, 91.5]", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (205, "3:25"), (7405, "2:03:25")],
)
def test_spans_of_time_are_short(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "just now"),
        (70, "1 min"),
        (3540, "59 min"),
        (3600, "1 h"),
        (90_000, "25 h"),
        (172_800, "2 days"),
        (1e8, "1157 days"),
    ],
)
def test_ages_are_in_one_unit(seconds, text):
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("num", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (404_480, "404 kB"), (3e9, "3 GB"), (5e15, "5000 TB")],
)
def test_sizes_are_decimal(num, text):
    assert size(num) == text


def test_text_cannot_steer_a_terminal():
    hostile = "a\x1b[31mred\x07\r\x9b1m \u202eback \u200bzero\ttab\nline é 数"
    assert printable(hostile) == "a\\x1b[31mred\\x07\\x0d\\x9b1m \\x202eback \\x200bzero\ttab\nline é 数"


def test_long_text_keeps_its_beginning_and_its_end():
    text = "".join(chr(ord("a") + index % 26) for index in range(1000))
    short = shortened(text, 100)
    assert len(short) == 100
    assert short.startswith(text[:60])
    assert short.endswith(text[-30:])
    assert shortened("short", 100) == "short"
