"""One step of `atr`, traced: it runs through the files that `docs/architecture.md` lists."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from atrium import train
from atrium.train.step import Steps

PACKAGE = Path(train.__file__).resolve().parents[1]
PAGE = PACKAGE.parents[1] / "docs" / "architecture.md"
MAX_FILES, MAX_LINES = 12, 3300


def rows_of(table):
    section = PAGE.read_text(encoding="utf-8").split("### Following one batch")[1].split("\n## ")[0]
    _, _, *rows = next(part for part in section.split("\n\n") if part.startswith(table)).splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def quoted(cell):
    return re.findall("`([^`]+)`", cell)


def traced_step(runs, monkeypatch):
    """The functions that run during the first step, by the file they stand in."""
    called = {}

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and not frame.f_code.co_name.startswith("<"):
            name = path.relative_to(PACKAGE).as_posix()
            called.setdefault(name, set()).add(frame.f_code.co_name)

    step = Steps.step

    def watched(steps, state):
        if state.step:
            return step(steps, state)
        sys.setprofile(note)
        try:
            return step(steps, state)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Steps, "step", watched)
    runs.train("algorithm=atr", "num_steps=2")
    return called


def test_a_step_runs_through_the_files_that_the_page_lists_and_through_its_boxes(runs, monkeypatch):
    called = traced_step(runs, monkeypatch)
    path = {quoted(file)[0]: quoted(functions) for file, functions in rows_of("| file")}
    for file, functions in path.items():
        module = importlib.import_module(f"atrium.{file.removesuffix('.py').replace('/', '.')}")
        dispatched = {name for name in functions if hasattr(getattr(module, name, None), "registry")}
        missing = set(functions) - called[file] - dispatched
        assert not missing, f"{file} is said to run {missing}"
    assert len(path) <= MAX_FILES
    assert sum(len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for file in path) <= MAX_LINES
    boxes = tuple(file for *_, files in rows_of("| box") for file in quoted(files))
    assert all((PACKAGE / box).exists() for box in boxes)
    elsewhere = {file for file in called if file not in path and not file.startswith(boxes)}
    assert not elsewhere, "name them in docs/architecture.md"
