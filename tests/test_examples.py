"""The examples in docstrings: each is run, and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE_ROOT = Path(__file__).resolve().parents[1] / "platform"
MODULES = [
    ".".join(path.relative_to(SOURCE_ROOT).with_suffix("").parts)
    for path in sorted((SOURCE_ROOT / "atrium").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_examples_are_found():
    assert {"atrium.method.needs", "atrium.method.regions"} <= set(MODULES)
