"""YAML that would take all memory, the stack or forever is refused in one line, wherever it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.files import parse_yaml
from atrium.sweep.files import read_definition

_LEVELS = "bcdefghijklm"


def _bomb(opening: str, closing: str) -> str:
    lines, before = ["a: &a [1]"], "a"
    for name in _LEVELS:
        entries = ", ".join(f"k{i}: *{before}" if opening == "{" else f"*{before}" for i in range(9))
        lines.append(f"{name}: &{name} {opening}{entries}{closing}")
        before = name
    return "\n".join(lines)


_HOSTILE = {
    "aliases in lists": (_bomb("[", "]"), "values"),
    "aliases in mappings": (_bomb("{", "}"), "values"),
    "an alias of itself": ("a: &a [*a]", "refers to a value that contains it"),
    "a date by its tag": ("a: !!timestamp 2020-01-01", "has the YAML tag"),
    "a class": ("a: !!python/object/apply:os.system [true]", "has the YAML tag"),
    "deep lists": ("a: " + "[" * 50_000 + "]" * 50_000, "levels|maximum nesting depth"),
    "deep mappings": ("a: " + "{a: " * 5_000 + "1" + "}" * 5_000, "levels"),
}


@pytest.mark.parametrize(("text", "said"), _HOSTILE.values(), ids=_HOSTILE)
def test_yaml_that_stands_for_too_much_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    for read in (
        lambda: compose([f"experiment={path}"]),
        lambda: compose([f"algorithm={path}"]),
        lambda: read_definition(path),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            read()
        assert "hostile.yaml" in str(refused.value)


def test_aliases_within_the_bound_keep_their_meaning() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def test_a_pipe_in_place_of_a_file_of_settings_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError):
        read_definition(path)


def test_a_date_is_text_and_many_keys_are_read_at_once() -> None:
    assert parse_yaml("2020-01-01: 2020-01-01") == {"2020-01-01": "2020-01-01"}
    text = "".join(f"k{n}: {n}\n" for n in range(24_000))
    assert len(parse_yaml(text)) == 24_000
    with pytest.raises(yaml.YAMLError, match="'k7' appears twice"):
        parse_yaml(f"{text}k7: 1")
