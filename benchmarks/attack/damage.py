"""Every kind of damage to every kind of file in a run directory, and what commands then make of the folder.

Readers have to show what is left or refuse it in one line; a run that is continued has to end, or to be
refused in one line. Nothing may be read without end, and no line that was recorded may be lost.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.attack.commands import said_by
from benchmarks.attack.kills import TRAIN
from benchmarks.attack.outcomes import Attempt, Outcome

from atrium.runs.find import list_runs
from atrium.runs.layout import remove


def _cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))] if content else b"{")


def _scrambled(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"0")
    for _ in range(8):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)


def _instead(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def exchange(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return exchange


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "cut short": _cut,
    "scrambled": _scrambled,
    "empty": lambda path, _: path.write_bytes(b"") and None,
    "zeros": lambda path, _: path.write_bytes(bytes(path.stat().st_size)) and None,
    "missing": lambda path, _: path.unlink(),
    "a folder": _instead(Path.mkdir),
    "a pipe": _instead(os.mkfifo),
    "a link to nowhere": _instead(lambda path: path.symlink_to("/nowhere")),
    "a link to /dev/zero": _instead(lambda path: path.symlink_to("/dev/zero")),
}
READERS = (
    ("runs", "--runs-dir", "{runs}"),
    ("show", "{run}"),
    ("samples", "{run}"),
    ("diff", "{run}", "{whole}"),
    ("compare", "{run}", "{whole}", "--runs-dir", "{runs}"),
    ("evaluate", "--regrade", "{run}"),
    ("export", "{run}", "--to", "{runs}/exported"),
    ("clean", "--runs-dir", "{runs}"),
)
RESUME = ("train", "--resume", "{run}", "num_steps=5")


def attempts(num: int, seed: int, place: Path) -> Iterator[Attempt]:
    """So many damages, each to a copy of one run; each is told for all commands that met it."""
    if not num:
        return
    rng = random.Random(seed)
    whole = place / "whole" / "runs"
    said_by((*TRAIN, "tracking.rollouts_every_num_steps=1", f"runs_dir={whole}"))
    (run,) = list_runs(whole)
    files = sorted(
        path.relative_to(whole) for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"
    )
    cases = [*itertools.product(files, DAMAGES)]
    rng.shuffle(cases)
    for number, (file, damage) in enumerate(itertools.islice(itertools.cycle(cases), num)):
        runs_dir = place / f"damage-{number}" / "runs"
        shutil.copytree(whole, runs_dir)
        DAMAGES[damage](runs_dir / file, rng)
        damaged = runs_dir / run.path.relative_to(whole)
        yield _tried(f"{Path(*file.parts[2:])} is {damage}", runs_dir, damaged, run.path)
        remove(runs_dir.parent)


def _tried(what: str, runs_dir: Path, run: Path, whole: Path) -> Attempt:
    """Give all commands; the worst that came of them."""
    worst = Attempt("damaged files", what, Outcome.HELD)
    for words in (*READERS, RESUME):
        argv = tuple(word.format(runs=runs_dir, run=run, whole=whole) for word in words)
        outcome, said = said_by(argv)
        if outcome is Outcome.FELL:
            return Attempt("damaged files", f"{what}: {words[0]}", outcome, said)
        if outcome is Outcome.REFUSED:
            worst = Attempt("damaged files", what, outcome, said)
    return worst
