"""The attack, `make attack`: prints what fell as it goes, and a table of everything that was tried.

--mutations N   wrong settings and command lines
--effects N     settings of methods and optimisers that two tiny steps have to show
--kills N       processes of every kind of command, killed at random moments
--damages N     damaged and missing files of a run directory
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
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path

from benchmarks.attack import damage, effects, hostile, kills, mutations
from benchmarks.attack.outcomes import Attempt, Outcome, table

import atrium

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guarantees.md"
MARKED = re.compile(r"(<!-- table: attack -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Attack as the command line says; 1 where anything fell. Ctrl-C ends it with what was tried by then."""
    arguments = _parser().parse_args()
    os.environ |= {"ATRIUM_MIRRORS": "off", "ATRIUM_NO_LOCAL": "1"}
    found: list[Attempt] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        is_whole = _attacked(arguments, Path(folder), found)
    lines = [*table(found), "", _words(arguments.seed)]
    sys.stdout.write("\n".join(lines) + "\n")
    if arguments.write and is_whole:
        _write("\n".join(lines))
    return int(any(attempt.outcome is Outcome.FELL for attempt in found))


def _attacked(arguments: argparse.Namespace, place: Path, found: list[Attempt]) -> bool:
    """Append each attempt to `found` as it ends; False where Ctrl-C ended them."""
    seed = arguments.seed

    def take(attempts: Iterable[Attempt]) -> None:
        try:
            for attempt in attempts:
                found.append(attempt)
                if attempt.outcome is Outcome.FELL:
                    _print(f"fell: {attempt.kind}: {attempt.tried}\n  {attempt.said.strip()}\n")
        except Exception:  # in a thread nobody else would see it
            found.append(Attempt("the attack itself", "", Outcome.FELL))
            _print(traceback.format_exc())

    # Kills are of processes of their own, so they go on beside the rest, in two rows.
    halves = [(arguments.kills + 1) // 2, arguments.kills // 2]
    threads = [
        threading.Thread(
            target=take, args=(kills.attempts(num, seed + row, place / f"kills-{row}"),), daemon=True
        )
        for row, num in enumerate(halves)
    ]
    try:
        for thread in threads:
            thread.start()
        take(map(mutations.tried, itertools.islice(mutations.command_lines(seed), arguments.mutations)))
        take(hostile.attempts(arguments.hostile, seed, place / "hostile"))
        take(damage.attempts(arguments.damages, seed, place / "damages"))
        take(effects.attempts(arguments.effects, seed, place / "effects"))
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        return False
    return True


def _print(text: str) -> None:
    """Print at once, also while the output of a command in this process goes elsewhere."""
    assert sys.__stdout__ is not None
    sys.__stdout__.write(text)
    sys.__stdout__.flush()


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
