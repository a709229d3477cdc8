"""The progress display of a sweep: a live table in a terminal, otherwise one line per finished trial.

Its only input is the content of the sweep's `state.json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from atrium.document.formatting import counted, duration, printable
from atrium.sweep.document import trial_name, trial_values, trials_table
from atrium.views.cells import texts

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_STYLES = {"complete": "green", "pruned": "magenta", "failed": "red", "running": "cyan", "waiting": "dim"}
_MAX_ROWS = 30
_QUIET_S = 30.0
"""Seconds without output after which `Lines` prints a progress line."""
_MIN_RUNS = 3
"""Amount of completed work, in runs, that an estimate of the time left requires."""


class SweepDisplay(Protocol):
    """A display of a sweep's state."""

    def update(self, state: Mapping[str, Any]) -> None:
        """Show a new state, the content of `state.json`."""

    def message(self, text: str) -> None:
        """Print a line that stays on the screen."""


@contextmanager
def sweep_display() -> Iterator[SweepDisplay]:
    """Yield a display on standard output: a live table in a terminal, otherwise lines."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    from rich.live import Live

    with Live(refresh_per_second=2, transient=True) as live:
        yield _LiveTable(live)


class Progress:
    """The progress of a sweep: finished runs, elapsed time, and an estimate of the time left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._work_before: float | None = None

    def words(self, state: Mapping[str, Any]) -> str:
        """Return text such as `7 of 20 runs, 1:12, about 2:14 left`.

        The estimate of the time left takes finished steps of unfinished runs into account. It is omitted
        until the steps finished since the display started add up to three runs. If more trials will be
        planned later, the text says `at least` and `for these`, because the runs of those trials are not
        counted yet.
        """
        trials = state["trials"]
        done, known = sum(map(_num_done, trials)), sum(trial["num_seeds"] for trial in trials)
        is_all = sum(stage["num_trials"] or len(trials) + 1 for stage in state["stages"]) <= len(trials)
        current = (one["step"] / one["num_steps"] for one in state["workers"] if one["trial"] is not None)
        work = done + sum(current)
        if self._work_before is None:
            self._work_before = work
        elapsed_s, new = self._clock() - self._started, work - self._work_before
        text = f"{done} of {'' if is_all else 'at least '}{known} runs, {duration(elapsed_s)}"
        if new < _MIN_RUNS:
            return text
        left = duration(elapsed_s / new * (known - work))
        return f"{text}, about {left} left{'' if is_all else ' for these'}"


def _num_done(trial: Mapping[str, Any]) -> int:
    """Return how many of a trial's runs have finished or diverged.

    If the trial has ended, all of its runs count.
    """
    if trial["state"] not in ("waiting", "running"):
        return int(trial["num_seeds"])
    return sum(seed["state"] in ("finished", "diverged") for seed in trial["seeds"])


class _LiveTable:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._progress = Progress()

    def update(self, state: Mapping[str, Any]) -> None:
        self._live.update(live_view(state, self._progress.words(state)))

    def message(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)


class Lines:
    """A display that prints a line per finished trial, and a progress line after 30 s without any output."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said = clock()
        self._ended: set[tuple[str, int]] = set()
        self._progress = Progress(clock)

    def update(self, state: Mapping[str, Any]) -> None:
        """Print the trials that have ended since the last call, or a progress line if one is due."""
        progress = self._progress.words(state)
        metrics = [objective["metric"] for objective in state["objectives"]]
        for trial in state["trials"]:
            key = (trial["stage"], trial["number"])
            if trial["state"] in ("waiting", "running") or key in self._ended:
                continue
            self._ended.add(key)
            reason = f"  {trial['reason']}" if trial["reason"] else ""
            self.message(
                f"{trial['stage']} {trial['number']:3d}  {trial['state']:8}  "
                f"{trial_values(trial, metrics):18}  {trial_name(trial)}{reason}"
            )

        if state["workers"] and self._clock() - self._said >= _QUIET_S:
            running = "; ".join(
                f"{one['stage']} {one['trial']}, seed {one['seed']}: step {one['step']}/{one['num_steps']}"
                for one in state["workers"]
                if one["trial"] is not None
            )
            self.message(f"{progress}; {running}" if running else progress)

    def message(self, text: str) -> None:
        """Print a line at once."""
        self._said = self._clock()
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def live_view(state: Mapping[str, Any], progress: str = "") -> RenderableType:
    """Return a view of a sweep for one screen: the progress of the stages, then a table of trials.

    If the table would be too long, running trials are listed first, and the rows that do not fit are left
    out.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stages = "   ".join(
        f"{stage['name']} {stage['num_ended']} of {stage['num_trials'] or '?'}" for stage in state["stages"]
    )
    head = f"{stages}   {counted(len(state['workers']), 'worker')}   {progress}"
    found = trials_table(state, _shown_trials(state["trials"]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in found.columns:
        table.add_column(column.title, overflow="fold")
    for row in texts(found.rows):
        table.add_row(*(Text(printable(one), _STYLES.get(one, "")) for one in row))
    return Group(Text(head.rstrip(), style="bold"), table)


def _shown_trials(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    order = {"running": 0, "complete": 1, "pruned": 1, "failed": 1, "waiting": 2}
    if len(trials) <= _MAX_ROWS:
        return list(trials)
    ranked = sorted(trials, key=lambda trial: (order[trial["state"]], -(trial["values"] or [0.0])[0]))
    return ranked[:_MAX_ROWS]
