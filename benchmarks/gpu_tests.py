"""Run tests of tests/gpu and print one JSON line per test as soon as it ends."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TextIO

import pytest

import record

REPOSITORY = Path(__file__).resolve().parents[1]


class Reporter:
    """A pytest plugin that writes a record of each test to `stream`."""

    def __init__(self, stream: TextIO, device: str) -> None:
        self._stream = stream
        self._shared = {
            "impl": record.versions("atrium-rl", "transformers", "torch"),
            **record.machine(device),
        }
        self._phases: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the phases of a test, and write its record after the last one."""
        self._phases.append(report)
        if report.when != "teardown":
            return
        bad = [phase for phase in self._phases if phase.failed]
        skipped = next((phase.longrepr[-1] for phase in self._phases if phase.skipped), "")
        found = {
            "file": Path(report.location[0]).name,
            "test": report.location[2],
            "outcome": "failed" if bad else "skipped" if skipped else "passed",
            "reason": skipped.removeprefix("Skipped: "),
            "seconds": round(sum(phase.duration for phase in self._phases), 1),
        }
        self._stream.write(json.dumps(found | self._shared) + "\n")
        self._stream.flush()
        self._phases = []


def main() -> None:
    """Run the test files with pytest, and write their records to standard output."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="+", help="names of files in tests/gpu")
    options.add_argument("--device", default="cuda", help="device for the record; the tests require CUDA")
    args = options.parse_args()
    os.chdir(REPOSITORY)
    # Standard output contains only records; all output of pytest and the tests goes to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)
        words = ["-q", "-m", "gpu", "-p", "no:cacheprovider"]
        words += ["-W", "default"]  # deprecation warnings of other library versions must not fail a test
        files = [f"tests/gpu/{name}" for name in args.files]
        pytest.main([*words, *files], plugins=[Reporter(stream, args.device)])


if __name__ == "__main__":
    main()
