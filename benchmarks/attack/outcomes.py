"""What came of an attack: each thing that was tried held, was refused in a line, or fell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from atrium.cli.app import INTERRUPTED


class Outcome(StrEnum):
    """How something hostile ended."""

    HELD = "held"
    REFUSED = "refused in a line"
    FELL = "fell"


@dataclass(frozen=True)
class Attempt:
    """One hostile thing: what kind of thing, what exactly, how it ended, and what was said."""

    kind: str
    tried: str
    outcome: Outcome
    said: str = ""


def judge(code: int, said: str, names: Sequence[str] = ()) -> tuple[Outcome, str]:
    """The outcome of a command by its exit code and standard error.

    A refusal is exit code 2 with one line that begins with `error: ` and holds one of `names`, where any
    are given; letter case and the kind of white space do not count. Ctrl-C was meant for the attack.
    """
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code == 0 and "Traceback" not in said:
        return Outcome.HELD, said
    is_one_line = said.startswith("error: ") and said.count("\n") == 1 and said.endswith("\n")
    is_named = not names or any(" ".join(name.split()).lower() in said.lower() for name in names)
    if code == 2 and is_one_line and is_named:
        return Outcome.REFUSED, said
    return Outcome.FELL, f"exit code {code}: {said[-500:]}"


def table(attempts: Iterable[Attempt]) -> list[str]:
    """A Markdown table with a line per kind, in the order in which kinds first occur."""
    counts: dict[str, Counter[Outcome]] = {}
    for attempt in attempts:
        counts.setdefault(attempt.kind, Counter())[attempt.outcome] += 1
    lines = ["| kind | tried | held | refused in a line | fell |", "|---|---|---|---|---|"]
    for kind, of in counts.items():
        cells = [kind, f"{of.total():,}", *(f"{of[outcome]:,}" for outcome in Outcome)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
