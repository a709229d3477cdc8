"""Files of real benchmark problems, which the project does not carry; tests that read them skip without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BENCHMARK_FILES = Path(
    os.environ.get("ATRIUM_SHARED_BENCHMARKS") or Path(__file__).resolve().parents[2] / "shared/benchmarks"
)
NOT_CARRIED = "the benchmark files are not here"
"""A skip for this reason is none that a machine's software could mend, see `conftest`."""

needs_benchmark_files = pytest.mark.skipif(not BENCHMARK_FILES.is_dir(), reason=NOT_CARRIED)
