"""`atrium runs`: the runs as a table, or as JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from atrium.base.nested import setting
from atrium.cli.parser import CommandParser, files_explained
from atrium.document.formatting import age, counted, number, printable
from atrium.runs.find import list_runs
from atrium.runs.reader import RunOverview, Scores, read_overview
from atrium.runs.status import RunState
from atrium.views.terminal import print_json, say, standard_output

STATE_STYLES = {
    RunState.STARTING: "cyan",
    RunState.FAILED_START: "dim",
    RunState.RUNNING: "cyan",
    RunState.FINISHED: "green",
    RunState.INTERRUPTED: "yellow",
    RunState.PRUNED: "magenta",
    RunState.FAILED: "red",
    RunState.KILLED: "red",
    RunState.LOST: "red",
    RunState.UNKNOWN: "dim",
}
_MEAN = "Mean@k, %"
_DROPPED_FIRST = ("benchmark", "seed", "algorithm", "divergence", "age")
"""The columns that a narrow terminal goes without, in this order; the run's name holds most of them."""


def main_runs(argv: list[str]) -> int:
    """List the runs, the latest last."""
    parser = CommandParser("runs", "List the runs, the latest last, with what each has learned so far.")
    parser.add_argument("text", nargs="?", default="", help="only runs whose name contains this")
    parser.add_argument("--all", action="store_true", help="also runs that failed to start")
    parser.add_argument("--json", action="store_true", help="one JSON array with everything known")
    parser.add_runs_dir()
    arguments = parser.parse(argv)
    with files_explained():
        wanted = arguments.text.lower()
        found = [run for run in list_runs(arguments.runs_dir) if wanted in run.name.lower()]
        runs = [read_overview(run) for run in found]
        shown = [run for run in runs if arguments.all or run.state is not RunState.FAILED_START]
        num_hidden = len(runs) - len(shown)
        if arguments.json:
            print_json([describe(run) for run in shown])
        else:
            console = standard_output()
            _print_runs(shown, arguments, console)
            if num_hidden:
                console.print(_hidden_words(num_hidden), style="dim", soft_wrap=True)
    return 0


def _hidden_words(num: int) -> str:
    return f"{counted(num, 'failed start')} hidden; --all lists them, `atrium clean` removes them"


def describe(run: RunOverview) -> dict[str, object]:
    """A run in the content of `--json`."""
    status = run.status
    return {
        "name": run.folder.name,
        "path": str(run.folder.path),
        "experiment": run.folder.name.partition("/")[0],
        "algorithm": setting(run.config, "algorithm.name"),
        "divergence": run.config.get("divergence"),
        "seed": run.config.get("seed"),
        "state": run.state,
        "step": status.step,
        "num_steps": status.num_steps,
        "started": status.started,
        "updated": status.updated,
        "wall_s": status.wall_s,
        "error": status.error,
        "evaluations": {benchmark: scores.as_record() for benchmark, scores in run.scores.items()},
        "problems": run.problems,
    }


def _print_runs(runs: Sequence[RunOverview], arguments: argparse.Namespace, console: Console) -> None:
    if not runs:
        place, text = printable(arguments.runs_dir), printable(arguments.text)
        told = f"no runs in {place}; `atrium train` makes one"
        if text and list_runs(arguments.runs_dir):
            told = f"no run in {place} has {text} in its name; `atrium runs` lists all"
        console.print(told, soft_wrap=True)
        return
    rows = [_row(run) for run in runs]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    columns = _columns_that_fit(rows, console.width)
    for name in columns:
        # Only the run's name is broken into lines where the rest needs the room: it must stay readable.
        justify: JustifyMethod = "right" if name in ("seed", "step") else "left"
        table.add_column(
            _mean_title(runs) if name == _MEAN else name,
            justify=justify,
            no_wrap=name != "run",
            overflow="fold",
        )
    for run, row in zip(runs, rows, strict=True):
        cells = [
            Text(row[name], style=STATE_STYLES[run.state] if name == "state" else "") for name in columns
        ]
        table.add_row(*cells)
    console.print(table)
    for run in runs:
        notes = [*run.problems, *([run.status.error] if run.status.error else [])]
        if notes:
            say(console, f"{run.folder.name}: {'; '.join(notes)}", "yellow")


def _row(run: RunOverview) -> dict[str, str]:
    status = run.status
    benchmark, scores = _judged_on(run.scores)
    row = {
        "run": run.folder.name,
        "algorithm": _text(setting(run.config, "algorithm.name")),
        "divergence": _divergence(run.config.get("divergence")),
        "seed": _text(run.config.get("seed")),
        "state": str(run.state),
        "step": f"{status.step}/{status.num_steps}" if status.num_steps else str(status.step),
        _MEAN: _progress(scores) if scores else "–",
        "benchmark": benchmark,
        "age": age(time.time() - status.started) if status.started else "–",
    }
    return {name: printable(value).replace("\n", " ") for name, value in row.items()}


def _judged_on(scores: Mapping[str, Scores]) -> tuple[str, Scores | None]:
    """The benchmark that a list shows: test problems where they were evaluated twice, else any."""
    names = sorted(
        scores, key=lambda name: (scores[name].first.step == scores[name].last.step, "validation" in name)
    )
    return (names[0], scores[names[0]]) if names else ("", None)


def _progress(scores: Scores) -> str:
    first, last = (
        "–" if point.mean_at_k is None else f"{100 * point.mean_at_k:.1f}"
        for point in (scores.first, scores.last)
    )
    return first if scores.first.step == scores.last.step else f"{first} → {last}"


def _mean_title(runs: Sequence[RunOverview]) -> str:
    """The title with the number of samples where all runs have the same."""
    ks = {scores.last.k for run in runs for scores in run.scores.values()}
    return f"Mean@{ks.pop()}, %" if len(ks) == 1 and None not in ks else _MEAN


def _divergence(value: object) -> str:
    if not isinstance(value, Mapping):
        return "–"
    numbers = [
        number(float(v)) for v in value.values() if isinstance(v, int | float) and not isinstance(v, bool)
    ]
    return f"{_text(value.get('kind'))} {'/'.join(numbers)}".strip()


def _text(value: object) -> str:
    return "–" if value is None else str(value)


def _columns_that_fit(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    columns = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) + 2 for name in columns}
    for name in _DROPPED_FIRST:
        if sum(widths[column] for column in columns) > width:
            columns.remove(name)
    return columns
