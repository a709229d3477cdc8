"""Benchmark problems: real ones, which the project does not carry (tests of them skip), and a small suite."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

BENCHMARK_FILES = Path(
    os.environ.get("ATRIUM_SHARED_BENCHMARKS") or Path(__file__).resolve().parents[2] / "shared/benchmarks"
)
NOT_CARRIED = "the benchmark files are not here"
"""A skip for this reason is none that a machine's software could mend, see `conftest`."""

needs_benchmark_files = pytest.mark.skipif(not BENCHMARK_FILES.is_dir(), reason=NOT_CARRIED)


def small_suite(folder: Path) -> list[str]:
    """The settings of a suite of three small benchmarks, whose files are written into `folder`."""
    lines = ["benchmark=aime_all"]
    for name in ("aime24", "aime25", "aime26"):
        file = folder / f"{name}.jsonl"
        rows = [{"id": f"{name}-{n}", "problem": f"{n}+{n}=", "answer": str(2 * n)} for n in range(1, 4)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        member = f"benchmark.members.{name}"
        lines += [f"{member}.source={file}", f"{member}.files=[]", f"{member}.revision=null"]
        lines += [f"{member}.expected_num_rows=3", f"{member}.expected_num_problems=3"]
        lines += [f"{member}.fields.question=[problem]", f"{member}.fields.answer=[answer]"]
    return lines
