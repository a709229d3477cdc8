"""The tests of tests/gpu as a measurement: one JSON line per file, with the tests that failed by name."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import record

REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run the files one after the other."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="+", help="names of files in tests/gpu")
    options.add_argument("--device", default="cuda", help="for the record; the tests need CUDA")
    args = options.parse_args()
    for name in args.files:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            pytest = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
            pytest += ["-W", "default"]  # a deprecation in other versions of libraries is no wrong number
            pytest += [f"--junit-xml={report}", f"tests/gpu/{name}"]
            subprocess.run(pytest, cwd=REPOSITORY, stdout=sys.stderr, check=False)
            (found,) = ElementTree.parse(report).getroot().iter("testsuite")
        cases = list(found.iter("testcase"))
        bad = [
            case.get("name")
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        ]
        skipped = [case.find("skipped") for case in cases if case.find("skipped") is not None]
        record.print_record(
            impl=record.versions("atrium-rl", "transformers", "torch"),
            file=name,
            passed=len(cases) - len(bad) - len(skipped),
            failed=bad,
            skipped=sorted({reason.get("message", "") for reason in skipped if reason is not None}),
            seconds=round(time.monotonic() - started, 1),
            **record.machine(args.device),
        )


if __name__ == "__main__":
    main()
