"""The attack, `make attack`: prints what fell as it goes, and a table of everything that was tried.

--mutations N   wrong settings and command lines
--effects N     settings of methods and optimisers that two tiny steps have to show
--kills N       processes of every kind of command, killed at random moments
--damages N     damaged and missing files of a run's folder
--hostile N     hostile data, chat templates and files of settings
--seed N        of every random choice
--write         put the table into docs/guarantees.md
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.attack import damage, effects, hostile, kills, mutations
from tests.attack.outcomes import Attempt, Outcome, table

import atrium

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guarantees.md"
MARKED = re.compile(r"(<!-- table: attack -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Attack as the command line says; 1 where anything fell."""
    arguments = _parser().parse_args()
    os.environ |= {"ATRIUM_MIRRORS": "off", "ATRIUM_NO_LOCAL": "1"}
    found: list[Attempt] = []
    seed, later = arguments.seed, lambda killing: iter(killing.result())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), ThreadPoolExecutor(1) as aside:
        place = Path(folder)
        # Kills are of processes of their own, so they go on beside the rest.
        killing = aside.submit(lambda: [*kills.attempts(arguments.kills, seed, place / "kills")])
        lines = itertools.islice(mutations.command_lines(seed), arguments.mutations)
        for attempt in itertools.chain(
            map(mutations.tried, lines),
            hostile.attempts(arguments.hostile, seed, place / "hostile"),
            damage.attempts(arguments.damages, seed, place / "damages"),
            effects.attempts(arguments.effects, seed, place / "effects"),
            later(killing),
        ):
            found.append(attempt)
            if attempt.outcome is Outcome.FELL:
                sys.stdout.write(f"fell: {attempt.kind}: {attempt.tried}\n  {attempt.said.strip()}\n")
                sys.stdout.flush()
    lines = [*table(found), "", _words(arguments.seed)]
    sys.stdout.write("\n".join(lines) + "\n")
    if arguments.write:
        _write("\n".join(lines))
    return int(any(attempt.outcome is Outcome.FELL for attempt in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, count in {
        "mutations": 3000,
        "effects": 400,
        "kills": 100,
        "damages": 300,
        "hostile": 400,
        "seed": 0,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N")
    parser.add_argument("--write", action="store_true")
    return parser


def _words(seed: int) -> str:
    return (
        f"Seed {seed}, Atrium {atrium.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} on {platform.machine()} with {os.cpu_count()} cores."
    )


def _write(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
