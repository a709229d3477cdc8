"""The examples in docstrings, which print what they say, and the programs and the notebook in examples/."""

from __future__ import annotations

import doctest
import importlib
import json
import os
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
@pytest.mark.parametrize("method", [pytest.param("grpo", marks=pytest.mark.release), "atr"])
def test_minimal_loop_learns_to_repeat_its_prompt(method):
    program = [sys.executable, SOURCE_ROOT.parent / "examples" / "minimal_loop.py", method]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, check=True)
    rewards = [float(reward) for reward in re.findall(r"reward (\S+)", done.stdout)]
    assert len(rewards) == 4
    assert max(rewards) > 0.5 > rewards[0]


@pytest.mark.full
def test_tutorial_notebook_runs_from_its_first_to_its_last_cell(tmp_path):
    notebook = json.loads((SOURCE_ROOT.parent / "examples" / "tutorial.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    short = "seed=0 experiment=stress debug=tiny_steps experiment_name=stress num_steps=1 tracking=none"
    short += " tracking.figures=false"
    environment = os.environ | {"TUTORIAL_RUNS": short}
    program = [sys.executable, "-c", "\n\n".join(cells)]
    done = subprocess.run(
        program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("one seed[:,] not judged", done.stdout), done.stdout
    assert (tmp_path / "comparison.png").exists()
