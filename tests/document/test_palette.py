"""Which colour a method has: always the same, until two methods of one figure want one."""

from __future__ import annotations

import re
from pathlib import Path

import atrium.views.dashboard
from atrium.document.palette import NUM_HUES, places
from atrium.views.figures.style import COLOURS

STYLE = Path(atrium.views.dashboard.__file__).with_name("static") / "style.css"


def named(*methods):
    return places({method: method for method in methods})


def test_a_method_keeps_its_colour_whatever_else_is_shown():
    alone = named("atr")["atr"]
    for others in (("grpo",), ("zeta", "grpo"), ("dapo", "gspo", "mine", "grpo")):
        assert named(*others, "atr")["atr"] == alone


def test_methods_that_arrive_later_take_no_colour_away():
    before = {"mine": "mine", "atr": "atr", "atr · delta 0.05": "atr"}
    after = {**before, "atr · delta 0.01": "atr", "theirs": "theirs"}
    kept = places(after)
    assert {name: kept[name] for name in before} == places(before)


def test_the_first_eight_differ_in_hue_and_the_ninth_in_dashes():
    found = places({f"atr · delta {number}": "atr" for number in range(NUM_HUES + 1)})
    *first, ninth = found.values()
    assert sorted(first) == list(range(NUM_HUES))
    assert ninth == first[0] + NUM_HUES


def test_figures_and_the_dashboard_have_the_same_colours():
    light, _ = STYLE.read_text().split('[data-theme="dark"]')
    assert re.findall(r"--series-\d: (#\w+)", light) == [colour.lower() for colour in COLOURS]
    assert len(COLOURS) == NUM_HUES
