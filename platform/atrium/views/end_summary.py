"""The summary at the end of a run: what was learned, the curves, where everything is, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atrium.base.errors import TrainingDivergedError
from atrium.base.metrics import CATALOGUE, ENTROPY, LENGTH_MEAN, NUM_TOKENS, REWARD
from atrium.document.formatting import counted, duration, number, printable, share, span, sparkline
from atrium.runs.diagnosis import Finding
from atrium.runs.find import short_name
from atrium.runs.reader import (
    MetricTable,
    RunOverview,
    Scores,
    read_evaluations,
    read_findings,
    read_metrics,
    read_overview,
    scores_of,
)
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState
from atrium.views.terminal import cell, print_table, say, tell

_SCORE_TITLES = ("  held-out problems", "", "before", "after")
_MARGINS = 8
"""The columns left of a table of curves, and between those of the table."""
INTERVAL_NOTE = "95 % intervals over problems: what another exam of such problems would say"


def print_summary(folder: RunFolder, console: Console | None = None) -> None:
    """Print what came out of a run, from what its folder holds: nothing where the folder is gone.

    Raises `OSError` where a file of the folder exists and cannot be read.
    """
    if not folder.path.is_dir():
        return
    console = console or Console()
    run, metrics = read_overview(folder), read_metrics(folder)
    console.print()
    print_heading(run, metrics, console)
    if run.status.error and run.state is not RunState.INTERRUPTED:  # the command itself says that it stopped
        say(console, f"error: {run.status.error}", "red")
    if scores := {name: scores_of(points) for name, points in read_evaluations(folder).items()}:
        console.print()
        print_table(console, _SCORE_TITLES, _score_rows(scores), is_text=True)
        tell(console, INTERVAL_NOTE, "dim", indent=2)
    if len(metrics.steps):
        console.print(Padding(curves_table(metrics, console.width), (1, 0, 0, 2), expand=False))
    console.print()
    for label, text, meaning in [*_places(run), ("", "", ""), *_next_commands(run)]:
        _print_to_copy(console, label, printable(text), meaning)
    print_findings(read_findings(folder), console)  # the last lines, which are read first


def print_findings(findings: Iterable[Finding], console: Console) -> None:
    """Print what went wrong in a run, one line for each."""
    for finding in findings:
        tell(console, finding.text, "yellow")


def _print_to_copy(console: Console, label: str, text: str, meaning: str) -> None:
    """Print a path or command, which is never broken, and its meaning: below it where the line is full."""
    line = Text.assemble((f"  {label:<12}", "cyan"), text)
    comment = Text(f"   {meaning}" if meaning else "", "dim")
    is_beside = not console.is_terminal or cell_len(line.plain + comment.plain) <= console.width
    if is_beside:
        line.append_text(comment)
    line.rstrip()
    console.print(line, soft_wrap=True)
    if not is_beside:
        tell(console, meaning, "dim", indent=16)


def print_heading(run: RunOverview, metrics: MetricTable, console: Console) -> None:
    """Print the run's name, how it ended, and how much it did; a terminal breaks the line between words."""
    status = run.status
    num_tokens = np.nansum(metrics.columns.get(NUM_TOKENS.name, np.zeros(0)))
    style = "bold green" if run.state is RunState.FINISHED else "bold yellow"
    parts = [
        printable(run.folder.name),
        f"step {status.step} of {status.num_steps}",
        duration(status.wall_s),
        f"{num_tokens:,.0f} tokens sampled",
    ]
    line = Text.assemble((str(run.state), style), "  ", "  ".join(parts))
    console.print(line, soft_wrap=not console.is_terminal)


def _score_rows(scores: Mapping[str, Scores]) -> list[tuple[str, ...]]:
    """First and last evaluation of each benchmark, test problems before validation problems."""
    rows: list[tuple[str, ...]] = []
    for benchmark in sorted(scores, key=lambda name: ("validation" in name, name)):
        first, last = scores[benchmark].first, scores[benchmark].last
        k = "k" if last.k is None else last.k
        is_one = first.step == last.step
        mean = [_estimate(p.mean_at_k, p.interval_over_problems) for p in (first, last)]
        passed = [_estimate(p.pass_at_k, p.pass_interval_over_problems) for p in (first, last)]
        steps = [f"step {first.step}", "" if is_one else f"step {last.step}"]
        num = "" if last.num_problems is None else counted(last.num_problems, "problem")
        if is_one:
            mean[1] = passed[1] = "–"
        rows.append((f"  {benchmark}", f"Mean@{k}", *mean))
        rows.append((f"  {num}", f"Pass@{k}", *passed))
        rows.append(("", "", *steps))
    return rows


def curves_table(metrics: MetricTable, width: int, names: tuple[str, ...] | None = None) -> Table:
    """One sparkline per quantity with its first and last value; reward, entropy and length by default.

    Sparklines are as long as `width` columns allow.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_column(style="cyan")
    rows: list[tuple[str, str, str]] = []
    courses: list[list[float]] = []
    for name in names or (REWARD.name, ENTROPY.name, LENGTH_MEAN.name):
        values = metrics.columns.get(name)
        if values is None:
            continue
        shown = share if name.endswith("_frac") else number
        unit = CATALOGUE[name].unit if name in CATALOGUE else ""
        label = name.rpartition("/")[2].removesuffix("_frac").replace("_", " ")
        rows.append((label, shown(values[0]), f"{shown(values[-1])} {unit}".rstrip()))
        courses.append(list(values))
    taken = sum(max((cell_len(row[place]) for row in rows), default=0) for place in range(3))
    room = min(32, max(4, width - taken - _MARGINS))
    for (label, first, last), course in zip(rows, courses, strict=True):
        table.add_row(*map(cell, (label, first, sparkline(course, width=room), last)))
    return table


def _estimate(value: float | None, interval: tuple[float, float] | None) -> str:
    return f"{share(value)} {span(interval)}".rstrip()


def _places(run: RunOverview) -> list[tuple[str, str, str]]:
    folder = run.folder
    places = [("record", str(folder.path), "")]
    curves = folder.figures_dir / "curves.png"
    if curves.is_file():
        places.append(("figures", str(curves), ""))
    if steps := folder.checkpoint_steps():
        places.append(("checkpoint", str(folder.checkpoint_path(steps[-1])), ""))
    return places


def _next_commands(run: RunOverview) -> list[tuple[str, str, str]]:
    folder = run.folder
    name = shlex.quote(name_to_type(folder))
    commands = []
    steps = folder.checkpoint_steps()
    may_resume = run.state not in (RunState.FINISHED, RunState.FAILED_START)
    if may_resume and run.status.cause == TrainingDivergedError.cause:  # it would diverge again
        may_resume = False
        if earlier := [step for step in steps if step < run.status.step] or steps[:-1]:
            lower = f"atrium train --resume {name}@{earlier[-1]} optimizer.learning_rate=RATE"
            commands.append((lower, f"a new run from step {earlier[-1]}, with a lower learning rate"))
    if may_resume:
        meaning = f"continue after step {steps[-1]}" if steps else "start again from the first step"
        commands.append((f"atrium train --resume {name}", meaning))
    commands.append((f"atrium show {name}", "settings, curves, rollouts"))
    if steps:
        commands.append((f"atrium export {name}", "the policy as a transformers folder"))
        if run.state is RunState.FINISHED:
            more = max(2 * run.status.num_steps, 1)
            commands.append((f"atrium train --resume {name} num_steps={more}", "train on"))
    width = max(len(command) for command, _ in commands)
    return [
        ("" if index else "next", f"{command:<{width}}", meaning)
        for index, (command, meaning) in enumerate(commands)
    ]


def name_to_type(folder: RunFolder) -> str:
    """The name that a person types for this run: a short one in `./runs`, else its path."""
    runs_dir = folder.path.parent.parent
    if runs_dir.resolve() == Path("runs").resolve():
        return short_name(runs_dir, folder)
    return str(folder.path)
