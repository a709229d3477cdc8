"""Which spellings are one, and which must stay apart."""

from __future__ import annotations

import pytest

from atrium.grading.normalization import read, split


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("$5$", "5"),
        (r"\$5", "5"),
        (r"5\ ", "5"),
        ("5.", "5"),
        ("=5", "5"),
        ("{5}", "5"),
        ("1,234", "1234"),
        ("1,234,567.5", "1234567.5"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"1,\!234", "1234"),
        ("1 234 567", "1234567"),
        (r"\text{42}", "42"),
        ("４２", "42"),
        ("٤٢", "42"),
        ("−5", "-5"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\tfrac1{2}", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        ("x^2", "x^{2}"),
        (r"\left(1, 2\right)", "(1,2)"),
        (r"x \le 5", r"x\leq5"),
        ("x <= 5", r"x \leqslant 5"),
        (r"28\%", "28 percent"),
        ("1 and 2", "1, 2"),
        (r"1 \text{, and } 2", "1,2"),
        (r"\mathrm{e}", "e"),
        (r"90^\circ", "90"),
        (r"15\text{ cm}^2", "15"),
        ("125 miles", "125"),
        (r"5\mathrm{~cm}", "5"),
        (r"\boxed{x=\boxed{5}}", "x=5"),
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
        ("42<|endoftext|>", "42"),
        ("so $x < 3$ is the answer", "x<3"),
        ("The answer is 8", "8"),
    ],
)
def test_one_meaning_has_one_text(first: str, second: str):
    assert read(first).text == read(second).text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1, 234", "1234"),
        (r"4\quad 2", "42"),
        (r"4\,2", "42"),
        ("4 2", "42"),
        ("12 34", "1234"),
        ("4²", "42"),
        ("3½", "31/2"),
        (r"\sqrt[3]{2}", r"3\sqrt{2}"),
        ("x^10", "x^{1}0"),
        ("5!", "5"),
        (r"\overline{42}", "42"),
        (r"12_{8}", "12"),
        ("x'", "x"),
        ("-5", "5"),
        (r"\mathbb{R}", "R"),
    ],
)
def test_different_meanings_keep_different_texts(first: str, second: str):
    assert read(first).text != read(second).text


def test_words_are_recognised_whatever_they_are_set_in():
    assert read(r"\text{Evelyn}").words == read("Evelyn").words == "evelyn"
    assert read(r"\text{(C)}").words == read("(C)").words == "C"
    assert read(r"\text{no integer solution}").words == "nointegersolution"
    assert read(r"\text{no real solution}").words == read(r"\emptyset").words == "none"
    assert read(r"\text{x-1}").words is None
    assert read("a-b").words is None
    assert read("42").words is None


def test_parts_are_split_outside_of_brackets_only():
    tokens = read("(1,2),[3,4],{5,6},7").tokens
    assert len(split(tokens, frozenset((",",)))) == 4


def test_reading_is_linear_and_never_fails():
    for text in (
        "{" * 1_000 + "}" * 1_000,
        " " * 1_990 + "4",
        r"\text{" + " " * 1_980 + "}",
        r"\text{" * 300,
        r"\mathbf{" * 280,
        "a" * 2_000,
        "$" * 2_000,
        "\\",
    ):
        read(text)
