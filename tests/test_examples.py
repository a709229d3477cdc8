"""The examples in docstrings, which print what they say, and the programs in examples/, which learn."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
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


@pytest.mark.full
@pytest.mark.parametrize("method", ["grpo", "atr"])
def test_minimal_loop_learns_to_repeat_its_prompt(method):
    program = [sys.executable, SOURCE_ROOT.parent / "examples" / "minimal_loop.py", method]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, check=True)
    rewards = [float(reward) for reward in re.findall(r"reward (\S+)", done.stdout)]
    assert len(rewards) == 4
    assert max(rewards) > 0.5 > rewards[0]
