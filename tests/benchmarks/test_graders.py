"""The matrix of graders counts right and wrong per grader, and lists what one of them judges otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "graders.py"
CASES = [
    {"gold": "42", "prediction": r"\boxed{42}", "expected": True},
    {"gold": "42", "prediction": r"\boxed{41}, \boxed{42}", "expected": False},
    {"gold": "1/3", "prediction": "0.33333", "expected": True},
    {"gold": "5", "prediction": r"5\text{ or six}", "expected": False},
]


def test_graders_are_compared_on_cases_of_ones_own(tmp_path: Path):
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text("".join(json.dumps(case) + "\n" for case in CASES))
    command = [sys.executable, str(PROGRAM), "--only", "given", "--cases", str(cases), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()}
    assert rows["math"] == ["75.0%", "0", "1"]
    assert rows["math_tolerance"] == ["100.0%", "0", "0"]
    assert rows.keys() >= {"math-verify raw", "math-verify boxed", "Qwen2.5-Math rule"}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert any(line["case"] == "line 3" and "math" in line["otherwise"] for line in lines)
