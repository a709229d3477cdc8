"""The benchmark of the grader runs, and what it times is what it says: right and wrong in equal parts."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "grading_throughput.py"


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location("grading_throughput", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_both_workloads_are_timed_and_half_of_their_answers_are_right(program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grading_throughput.py", "--num-answers", "600", "--golds", "nowhere"])
    program.main()
    start, aime, math = map(json.loads, capsys.readouterr().out.splitlines())
    assert start["wall_s"] > 0
    assert (aime["workload"], math["workload"]) == ("aime", "math")
    assert aime["num_answers"] == 600
    assert aime["to_workers_frac"] == 0.0, "integers are settled before any process is asked"
    for record in (aime, math):
        assert 0.45 < record["correct_frac"] < 0.55
        assert record["answers_per_core_s"] > 0
