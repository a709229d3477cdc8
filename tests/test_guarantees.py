"""docs/guarantees.md: each promise names a test that shows it, and each of these tests is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "guarantees.md"
NAMED = re.compile(r"`(test_\w+)`")


def _tests():
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                yield node.name


def test_each_test_that_a_promise_names_is_there():
    named = set(NAMED.findall(PAGE.read_text(encoding="utf-8")))
    assert named
    assert named <= set(_tests())


def test_each_promise_in_a_table_names_a_test():
    promised, _, _ = PAGE.read_text(encoding="utf-8").partition("## The attack")
    rows = re.findall(r"^\|.*\|$", promised, flags=re.MULTILINE)
    promises = [row for row in rows if not row.startswith("|---") and not row.endswith("shown by |")]
    assert promises
    assert [row for row in promises if not NAMED.search(row)] == []
