"""`atrium show`: one run's settings, curves, evaluations, and what it answered before and after."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atrium.base.errors import AtriumError, RunFolderError
from atrium.base.metrics import (
    CLIP_HIGH_FRAC,
    CLIP_LOW_FRAC,
    ENTROPY,
    GRAD_NORM,
    KL_K3,
    LENGTH_MEAN,
    OUTSIDE_HIGH_FRAC,
    OUTSIDE_LOW_FRAC,
    REWARD,
    STEP_S,
    TRUNCATED_FRAC,
)
from atrium.base.nested import flattened, mapping_at, setting
from atrium.base.plain_files import read_plain
from atrium.base.recorded import number_or_nan, read_object
from atrium.cli.parser import CommandParser, files_explained
from atrium.cli.runs.sides import sides_lines
from atrium.document.formatting import age, counted, printable, share, shortened, span
from atrium.runs.find import find_run
from atrium.runs.layout import steps_in
from atrium.runs.reader import (
    EvaluationPoint,
    RunOverview,
    read_evaluations,
    read_findings,
    read_metrics,
    read_overview,
)
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import Row, read_samples
from atrium.views.end_summary import INTERVAL_NOTE, curves_table, print_findings, print_heading
from atrium.views.terminal import cell, print_cells, say, standard_output, tell

_SHOWN_CURVES = tuple(
    quantity.name
    for quantity in (
        REWARD,
        ENTROPY,
        LENGTH_MEAN,
        TRUNCATED_FRAC,
        CLIP_HIGH_FRAC,
        CLIP_LOW_FRAC,
        OUTSIDE_HIGH_FRAC,
        OUTSIDE_LOW_FRAC,
        KL_K3,
        GRAD_NORM,
        STEP_S,
    )
)
_UNLISTED = ("runs_dir", "experiment_name", "resume", "branch", "compute", "kind", "not_read")
"""Settings of where and on what machine a run was, and those that an evaluation does not read."""
_MAX_VALUE = 60
_COLUMNS = ("problem_id", "question", "gold", "sample_index", "text", "verdict", "finish_reason")
_MAX_TEXT = 400
_STYLES = {"correct": "green", "incorrect": "red", "no_answer": "yellow"}


def main_show(argv: list[str]) -> int:
    """Print what is known about one run."""
    parser = CommandParser(
        "show",
        "Show a run: the settings that differ from the defaults, curves, evaluations, and what it\n"
        "answered to the same problems before and after training.",
    )
    parser.add_run()
    parser.add_argument(
        "--samples", type=int, default=3, metavar="N", help="problems to show answers to (default: 3)"
    )
    arguments = parser.parse(argv)
    if arguments.samples < 0:
        parser.error(f"argument --samples: {arguments.samples} is less than 0")
    console = standard_output()
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run)
        run = read_overview(folder)
        _print_heading(run, console)
        _print_settings(run, console)
        metrics = read_metrics(folder)
        if len(metrics.steps):
            _print_title("curves (first value, course, last value)", console)
            console.print(
                Padding(curves_table(metrics, console.width, _SHOWN_CURVES), (0, 0, 0, 2), expand=False)
            )
        if lines := sides_lines(run):
            _print_title(lines[0], console)
            for line in lines[1:]:
                tell(console, line, indent=2)
        if evaluations := read_evaluations(folder):
            _print_evaluations(evaluations, console)
        if arguments.samples:
            print_samples(folder, num_problems=arguments.samples, console=console)
    return 0


def _print_heading(run: RunOverview, console: Console) -> None:
    status = run.status
    print_heading(run, read_metrics(run.folder), console)
    if status.started:
        passed = age(time.time() - status.started)
        ago = passed if passed == "just now" else f"{passed} ago"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.started))
        provenance, _ = read_object(run.folder.provenance_file)
        commit = setting(provenance, "code.commit")
        dirty = " with changes" if setting(provenance, "code.is_dirty") else ""
        code = f", commit {str(commit)[:10]}{dirty}" if commit else ""
        line = f"started {when} ({ago}) on {status.host or 'an unknown host'}{code}"
        say(console, line, "dim")
    if (step := setting(run.config, "branch.step")) is not None:
        say(console, f"goes on from step {step} of {setting(run.config, 'branch.run')}", "dim")
    for note in (*run.problems, *([status.error] if status.error else [])):
        say(console, note, "yellow")
    print_findings(read_findings(run.folder, is_over=not run.state.is_live), console)


def _print_settings(run: RunOverview, console: Console) -> None:
    """The settings that differ from the defaults, or what was typed where those cannot be composed."""
    if not run.config:
        return
    defaults, reason = _default_settings()
    if defaults is None:
        _print_title(f"what was typed ({reason})", console)
        for line in _overrides(run.folder):
            say(console, f"  {line}")
        return
    ours, theirs = flattened(run.config), flattened(defaults)
    differing = {
        key: value
        for key, value in ours.items()
        if key.partition(".")[0] not in _UNLISTED and theirs.get(key) != value
    }
    _print_title("settings that differ from the defaults", console)
    if not differing:
        console.print(Text("  none", "dim"))
        return
    table = Table.grid(padding=(0, 2))
    for key, value in differing.items():
        default = f"default {_shown(theirs[key])}" if key in theirs else "not in the defaults"
        table.add_row(cell(key), cell(_shown(value)), Text(printable(default), "dim"))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _default_settings() -> tuple[Mapping[str, object] | None, str]:
    try:
        # Hydra and pydantic cost 0.5 s, which only this part of this command needs.
        from atrium.config.compose import compose

        return compose([]).model_dump(mode="json"), ""
    except (ImportError, AtriumError) as error:
        return None, f"the defaults cannot be composed: {error}"


def _overrides(folder: RunFolder) -> list[str]:
    try:
        return read_plain(folder.overrides_file).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


def _shown(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


def _print_evaluations(evaluations: Mapping[str, Sequence[EvaluationPoint]], console: Console) -> None:
    for benchmark in sorted(evaluations, key=lambda name: ("validation" in name, name)):
        points = evaluations[benchmark]
        last = points[-1]
        k = "k" if last.k is None else last.k
        num = "" if last.num_problems is None else f", {counted(last.num_problems, 'problem')}"
        _print_title(f"evaluation: {printable(benchmark)}{num}, {counted(k, 'sample')} each", console)
        titles = ("step", f"Mean@{k}", "over problems", "sampling noise", f"Pass@{k}", "over problems")
        rows = [
            (
                f"{point.step:>4}",
                share(point.mean_at_k),
                span(point.interval_over_problems),
                span(point.interval_sampling),
                share(point.pass_at_k),
                span(point.pass_interval_over_problems),
            )
            for point in points
        ]
        print_cells(console, titles, rows)
        for line in _breakdown_lines(points[0], last):
            say(console, f"  {line}")
    tell(console, f"{INTERVAL_NOTE}; sampling noise: the same exam sampled again", "dim", indent=2)


def _breakdown_lines(first: EvaluationPoint, last: EvaluationPoint) -> list[str]:
    """Mean@k before and after for each value of what the problems are told apart by, such as level."""
    lines = []
    breakdown = mapping_at(last.results, "breakdown")
    points = (last,) if first.step == last.step else (first, last)
    for key in breakdown:
        parts = []
        for value in mapping_at(breakdown, key):
            means = [_mean_of(point, key, value) for point in points]
            parts.append(f"{value}: {' → '.join(f'{100 * mean:.0f}' for mean in means)}")
        lines.append(f"by {key}, in %:  {'   '.join(parts)}")
    return lines


def _mean_of(point: EvaluationPoint, key: str, value: str) -> float:
    """The recorded mean of one group, NaN where there is none. Values may hold dots."""
    group = mapping_at(point.results, f"breakdown.{key}").get(value)
    return number_or_nan(group.get("mean_at_k")) if isinstance(group, Mapping) else np.nan


def _print_title(text: str, console: Console) -> None:
    console.print()
    say(console, text, "bold")


def print_samples(folder: RunFolder, *, num_problems: int, console: Console) -> None:
    """Print the first sample of a few problems, before and after.

    The problems are spread evenly over the benchmark and not chosen by outcome. Where no benchmark was
    evaluated twice, rollouts of the first and the last recorded step stand in.
    """
    what, files = before_and_after(folder)
    if not files:
        return
    _print_title(f"samples: {what}", console)
    try:
        samples = {f"step {step}": _first_samples(path) for step, path in files}
    except RunFolderError as error:
        say(console, f"  {error}", "yellow")
        return
    first, *_, last = [*samples.values()] * 2
    if shared := [problem_id for problem_id in first if problem_id in last]:
        for problem_id in spread(shared, num_problems):
            _print_problem(first[problem_id], console)
            for when, rows in samples.items():
                _print_answer(when, rows[problem_id], console)
        return
    for when, rows in samples.items():
        for problem_id in spread(list(rows), num_problems):
            _print_problem(rows[problem_id], console)
            _print_answer(when, rows[problem_id], console)


def before_and_after(folder: RunFolder) -> tuple[str, list[tuple[int, Path]]]:
    """The evaluations at a first and a last step, in words, and their files; test problems before others."""
    names = (
        [path.name for path in folder.evaluations_dir.iterdir()] if folder.evaluations_dir.is_dir() else []
    )
    for benchmark in sorted(names, key=lambda name: ("validation" in name, name)):
        files = steps_in(folder.evaluations_dir / benchmark)
        if len(files) > 1:
            return f"the same {benchmark} problems before and after", [files[0], files[-1]]
    files = steps_in(folder.rollouts_dir)
    return "training rollouts", [files[0], files[-1]] if len(files) > 1 else files


def spread(items: Sequence[str], num: int) -> list[str]:
    """`num` of the items, evenly spread over all; all of them where there are fewer."""
    num = min(num, len(items))
    return [items[(2 * index + 1) * len(items) // (2 * num)] for index in range(num)]


def _first_samples(path: Path) -> dict[str, Row]:
    """The first sample of each problem, by problem."""
    found: dict[str, Row] = {}
    for row in read_samples(path, _COLUMNS):
        found.setdefault(str(row.get("problem_id")), row)
    return found


def _print_problem(row: Row, console: Console) -> None:
    question = shortened(str(row.get("question")), _MAX_TEXT)
    line = Text.assemble(
        "  ", (printable(question), "bold"), (f"   gold: {printable(str(row.get('gold')))}", "dim")
    )
    console.print(line, soft_wrap=True)


def _print_answer(when: str, row: Row, console: Console) -> None:
    verdict = printable(str(row.get("verdict")))
    text = printable(shortened(str(row.get("text")), _MAX_TEXT)).replace("\n", "\n" + " " * 28)
    line = Text.assemble((f"    {when:<10}", "dim"), (f"{verdict:<14}", _STYLES.get(verdict, "yellow")), text)
    if row.get("finish_reason") == "length":
        line.append("  (cut off)", "dim")
    console.print(line, soft_wrap=True)
