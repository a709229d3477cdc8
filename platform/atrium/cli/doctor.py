"""`atrium doctor`: check whether this machine meets the requirements of Atrium's features."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from atrium.assemble.doctor import examine
from atrium.cli.parser import CommandParser

_MARKS = {"ok": "ok", "note": "--", "missing": "!!"}


def main(argv: Sequence[str]) -> int:
    """Check the environment and return 1 if a requirement of training is missing, else 0."""
    parser = CommandParser(
        "doctor",
        "Check Python, packages, hardware, disk, the runs directory, threads and optional extras.\n"
        "The exit code is 1 if a requirement of training is missing, else 0.",
    )
    parser.add_json("one JSON array of findings")
    parser.add_runs_dir()
    arguments = parser.parse(argv)
    findings = list(examine(Path(arguments.runs_dir)))
    num_missing = sum(finding.level == "missing" for finding in findings)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            sys.stdout.write(f"{_MARKS[finding.level]}  {finding.subject:<{width}}  {finding.text}\n")
        verdict = f"missing requirements of training: {num_missing}" if num_missing else "ready to train"
        sys.stdout.write(f"\n{verdict}\n")
    return int(num_missing > 0)
