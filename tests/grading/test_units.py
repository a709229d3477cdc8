"""Units behind a value are dropped, in every way they are set; words that change a value are no units."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atrium.grading.equivalence import settle
from atrium.grading.normalization import read
from atrium.grading.notation import word_set

SYMBOLS = sorted(
    word_set(
        "m cm mm km nm pm g kg mg s ms ns A mA K N kN Pa kPa MPa J kJ MJ W kW MW V mV kV C F mF Hz kHz MHz "
        "GHz mol L mL eV keV MeV GeV pc kpc Mpc T cal kcal bar atm ft yd mi lb oz gal mph min h hr rad AU"
    )
)
NAMES = sorted(
    word_set(
        "meters kilometers centimeters feet inches miles yards seconds minutes hours days weeks years grams "
        "kilograms pounds ounces liters gallons dollars cents degrees radians newtons joules watts volts "
        "units apples students sides ways points marbles tickets ergs kelvin"
    )
)
QUOTIENTS = ("km/h", "m/s^2", "kg/m^3", "miles per hour", "dollars per ticket")


def set_units() -> Iterator[str]:
    for symbol in SYMBOLS:
        yield rf"\mathrm{{~{symbol}}}"
        yield rf"\,\text{{{symbol}}}"
        yield rf"\,\mathrm{{{symbol}}}^2"
        yield rf"\ \mathrm{{{symbol}}} / \mathrm{{s}}"
        yield rf"\ \frac{{\mathrm{{{symbol}}}}}{{\mathrm{{s}}^2}}"
        yield rf"\,\mathrm{{{symbol}\,s^{{-1}}}}"
    for name in (*NAMES, *QUOTIENTS):
        yield rf"\text{{ {name}}}"
        yield f" {name}" if "/" not in name else rf"\ \mathrm{{{name}}}"
    yield from (
        r"^\circ\mathrm{C}",
        r"^{\circ} C",
        "°C",
        r"\,\mathrm{\mu m}",
        r"\,\mu\text{m}",
        r"\text{ µm}",
        r"\ \Omega",
    )
    yield from (r"\,\mathrm{k\Omega}", r"\text{ square units}", r"\text{ cm squared}", r"\text{ times}")


UNITS = list(set_units())


def test_a_hundred_units_are_set_in_several_ways():
    assert len(set(SYMBOLS) | set(NAMES) | set(QUOTIENTS)) >= 100


@pytest.mark.parametrize("gold", ["1.6", r"\frac{3}{4}", r"2\sqrt{3}", "12"])
def test_a_value_with_a_unit_is_the_value(gold: str):
    assert [unit for unit in UNITS if read(gold + unit).text != read(gold).text] == []


def test_a_symbol_in_plain_letters_is_a_unit_unless_the_gold_has_such_letters():
    wrong = [symbol for symbol in SYMBOLS if len(symbol) > 1 and not settle("5", f"5 {symbol}").is_equal]
    assert wrong == []
    assert settle("5", "5 m").is_equal
    assert not settle("5m", "5").is_equal
    assert not settle(r"\frac{37}{4} m", r"\frac{37}{4}").is_equal
    assert settle(r"\frac{37}{4} m", r"\frac{37m}{4}") is None
    assert settle("5, 6", r"5\text{ cm}, 6\text{ cm}").is_equal
    assert not settle("(1, 2)", r"(\sin 1^\circ, 2)").is_equal


CHANGES = [
    *(
        "or six",
        "or less",
        "or more",
        "million",
        "thousand dollars",
        "dozen",
        "and a half",
        "squared",
        "plus one",
    ),
    *(
        "hundredths",
        "is wrong",
        "at least",
        "below zero",
        "halves",
        "to one",
        "minus two",
        "nor 6",
        "factorial",
    ),
    *("mod seven", "negative"),
]


@pytest.mark.parametrize("words", CHANGES)
def test_words_that_say_how_much_are_no_unit(words: str):
    finding = settle("5", rf"5\text{{ {words}}}")
    assert finding is not None
    assert not finding.is_equal, finding


def test_a_multiple_in_words_multiplies():
    assert settle("5000000", r"5\text{ million}").is_equal
    assert settle("5,000,000", "5 million").is_equal
    assert settle("2500", r"2.5\text{ thousand dollars}").is_equal
    assert settle("60", r"5\text{ dozen eggs}").is_equal
    assert settle("5000", r"5\text{ times }10^3").is_equal


@pytest.mark.parametrize(("gold", "answer"), [("17", "17_{23}"), ("101", "101_2"), ("52_8", "52_9")])
def test_a_number_in_another_base_is_another_number(gold: str, answer: str):
    assert not settle(gold, answer).is_equal
    assert settle(gold, gold + r"\text{ cm}").is_equal
