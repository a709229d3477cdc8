"""`atrium doctor`: whether this machine has what Atrium needs, and what is missing for what."""

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
    """Check the environment; 1 where a requirement of training is missing, else 0."""
    parser = CommandParser(
        "doctor",
        "Check Python, packages, hardware, disk, the runs folder, threads and optional extras.\n"
        "The exit code is 0 unless a requirement of training is missing.",
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
        verdict = f"{num_missing} requirements of training are missing" if num_missing else "ready to train"
        sys.stdout.write(f"\n{verdict}\n")
    return int(num_missing > 0)
