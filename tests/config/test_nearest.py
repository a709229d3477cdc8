"""Suggestions for names that are nearly right, and values as they are shown."""

from __future__ import annotations

from itertools import permutations

import pytest

from atrium.config.nearest import nearest, nearest_key, shown, suggestion

KEYS = ["seed", "optimizer", "optimizer.learning_rate", "optimizer.beta1", "divergence.delta"]
KEYS += ["model.warmup.learning_rate"]


@pytest.mark.parametrize(("name", "expected"), [("atrr", "atr"), ("GRPO", "grpo"), ("zzz", None), ("", None)])
def test_the_nearest_name_is_found_whatever_its_case(name, expected):
    assert nearest(name, ["atr", "grpo", "dapo"]) == expected


def test_letters_that_changed_places_are_likelier_than_wrong_ones():
    assert nearest("gpro", ["gvpo", "grpo", "gspo"]) == "grpo"
    assert nearest("gppo", ["gvpo", "grpo", "gspo"]) == "gvpo"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("delta", "divergence.delta"),
        ("learning_rate", "optimizer.learning_rate"),
        ("optimizer.learning_rat", "optimizer.learning_rate"),
        ("optimiser.learning_rat", "optimizer.learning_rate"),
        ("optimizer.delta", "divergence.delta"),
        ("optimizer.zzz", None),
        ("sed", "seed"),
    ],
)
def test_the_nearest_key_is_found_by_its_last_part_or_in_its_section(key, expected):
    assert nearest_key(key, KEYS) == expected


def test_the_order_in_which_keys_are_known_does_not_change_the_nearest():
    known = ["reward.kind", "divergence.kind", "grader.kind"]
    for order in permutations(known):
        assert nearest_key("rollout.kind", order) == nearest_key("rollout.kind", known)


def test_a_suggestion_is_made_only_where_something_is_alike():
    assert suggestion("atrr", ["atr"]) == "; did you mean atr?"
    assert suggestion("zzz", ["atr"]) == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", "abc"),
        ("", '""'),
        (" a", '" a"'),
        ("a\nb", '"a\\nb"'),
        (None, "null"),
        (True, "true"),
        (1e-8, "1e-08"),
    ],
)
def test_values_are_shown_as_they_are_typed_and_on_one_line(value, expected):
    assert shown(value) == expected
