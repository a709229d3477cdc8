"""`atrium compare` and `atrium diff`: which differences between runs are real, and where two runs differ."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.cli.parser import CommandParser, files_explained
from atrium.errors import ConfigError
from atrium.tracking.find import find_run, list_runs
from atrium.tracking.formatting import printable
from atrium.tracking.printing import print_json, print_table, say, standard_output, tell
from atrium.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from atrium.compare.report_tables import ReportTable
    from atrium.compare.run_comparison import RunsComparison
    from atrium.compare.run_differences import RunDifferences
    from atrium.tracking.curve_outcomes import CurveOutcome

_AT = ("last", "steps", "tokens", "wall_clock")
_MAX_NAME, _MAX_RUNS_NAMED = 60, 12
_EXAMPLES = """\
Runs that differ in their seeds alone form an arm; the first arm is the baseline. An experiment's name
stands for all of its runs.

  atrium compare 1a2b 3c4d                   two runs
  atrium compare my_experiment               all its runs, by the settings in which they differ
  atrium compare my_experiment --by algorithm.name --baseline grpo --at tokens
  atrium compare my_experiment --area rollout/reward --steps-to rollout/reward=0.5 --until 40
"""
_MAX_LINES = 60
_LINE_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def main(argv: list[str]) -> int:
    """Compare runs; 0 unless they cannot be compared."""
    arguments = _parser().parse(argv)
    from atrium.compare.outcomes import At  # numpy, scipy and pyarrow: `--help` answers without them
    from atrium.compare.report_tables import report_tables
    from atrium.compare.run_comparison import compare_runs

    runs_dir, outcomes = Path(arguments.runs_dir), _outcomes(arguments)
    with files_explained():
        folders = find_runs(runs_dir, arguments.runs)
        comparison = compare_runs(
            folders,
            by=arguments.by,
            baseline=arguments.baseline,
            at=At(arguments.at),
            benchmarks=arguments.benchmark,
            effect=_share(arguments.effect),
        )
        tables = [*report_tables(comparison), *_curve_tables(comparison, outcomes, arguments.ceiling)]
        console = standard_output()
        _print(comparison, tables, console)
        written = _write(comparison, tables, arguments, folders)
    for path in written:
        console.print(f"  {path}", soft_wrap=True)
    return 0


def find_runs(runs_dir: Path, wanted: Sequence[str]) -> list[RunFolder]:
    """The runs that names mean, each once; an experiment's name stands for all of its runs."""
    found: dict[str, RunFolder] = {}
    runs = list_runs(runs_dir)
    for name in wanted:
        members = [run for run in runs if run.name.partition("/")[0] == name.rstrip("/")]
        for run in members or [find_run(runs_dir, name)]:
            found[str(run.path.resolve())] = run
    return list(found.values())


def _parser() -> CommandParser:
    parser = CommandParser("compare", "Compare runs, problem by problem and seed by seed.", _EXAMPLES)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's name or its end, or an experiment")
    parser.add_argument(
        "--by", action="append", default=[], metavar="KEY", help="group by this setting only (repeatable)"
    )
    parser.add_argument("--baseline", metavar="ARM", help="an arm's name, or the end of one of its runs'")
    parser.add_argument(
        "--at",
        choices=_AT,
        default="last",
        help="compare at each run's last evaluation (the default), at equal steps, equal generated tokens, "
        "or equal training time",
    )
    parser.add_argument(
        "--benchmark", action="append", default=[], metavar="NAME", help="only this benchmark (repeatable)"
    )
    _add_curves(parser)
    parser.add_argument(
        "--effect",
        type=float,
        default=2.0,
        metavar="POINTS",
        help="the smallest difference of interest, for the number of seeds it needs (default: 2)",
    )
    parser.add_argument("--out", metavar="DIR", help="where the report goes (default: RUNS_DIR/reports)")
    parser.add_argument("--no-files", action="store_true", help="print only")
    parser.add_runs_dir()
    return parser


def _add_curves(parser: CommandParser) -> None:
    """The options that ask about training curves."""
    parser.add_argument(
        "--area",
        action="append",
        default=[],
        metavar="METRIC",
        help="also the mean of a training metric over steps 1 to --until (repeatable)",
    )
    parser.add_argument(
        "--steps-to",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="also the step at which a training metric reaches a value, at most --until (repeatable)",
    )
    parser.add_argument(
        "--ceiling",
        action="append",
        default=[],
        metavar="METRIC",
        help="also a fit of a training metric's curve by tokens: its ceiling, and how soon (repeatable)",
    )
    parser.add_argument("--until", type=int, metavar="STEP", help="the last step of --area and --steps-to")


def _curve_tables(
    comparison: RunsComparison, outcomes: Sequence[CurveOutcome], ceilings_of: Sequence[str]
) -> list[ReportTable]:
    """What is asked for of the training curves of the arms that are compared."""
    from atrium.compare.arm_curves import compare_ceilings, compare_curves
    from atrium.compare.curve_tables import ceiling_table, outcome_table

    arms = [one.arm for one in comparison.arms]
    return [
        *(outcome_table(compare_curves(arms, outcome)) for outcome in outcomes),
        *(ceiling_table(compare_ceilings(arms, metric)) for metric in ceilings_of),
    ]


def _outcomes(arguments: argparse.Namespace) -> list[CurveOutcome]:
    """The outcomes of curves that are asked for."""
    from atrium.tracking.curve_outcomes import Area, StepsTo

    if not arguments.area and not arguments.steps_to:
        return []
    until = arguments.until
    if until is None or until < 2:
        raise ConfigError("--area and --steps-to look at the first steps: give --until STEP, 2 or more")
    reached: list[CurveOutcome] = []
    for text in arguments.steps_to:
        metric, _, value = text.partition("=")
        try:
            reached.append(StepsTo(kind="steps_to", metric=metric, value=float(value), until=until))
        except ValueError:
            raise ConfigError(f"--steps-to {text}: write METRIC=VALUE, such as rollout/reward=0.5") from None
    return [*(Area(kind="area", metric=metric, until=until) for metric in arguments.area), *reached]


def _share(effect_points: float) -> float:
    if not 0.0 < effect_points <= 100.0:
        raise ConfigError(f"--effect {effect_points:g}: allowed are points above 0, at most 100; 2 is usual")
    return effect_points / 100.0


def _print(comparison: RunsComparison, tables: Sequence[ReportTable], console: Console) -> None:
    from atrium.compare.report_tables import note_lines, verdict_lines

    for line in verdict_lines(comparison):
        tell(console, line, "bold")
    console.print()
    for report in tables:
        num_columns = len(report.columns) - (report.columns[-1] == "verdict")
        tell(console, report.title, "bold cyan")
        print_table(console, report.columns[:num_columns], [row[:num_columns] for row in report.rows])
        console.print()
    for line in note_lines(comparison):
        tell(console, f"note: {line}", "yellow")


def _write(
    comparison: RunsComparison,
    tables: Sequence[ReportTable],
    arguments: argparse.Namespace,
    folders: Sequence[RunFolder],
) -> list[Path]:
    """Write the report's three files; their paths."""
    from atrium.compare.figures.style import use_cache
    from atrium.compare.report_markup import document_latex, document_markdown
    from atrium.compare.report_page import html_page
    from atrium.tracking.atomic import write_text

    if arguments.no_files:
        return []
    named = [folder.name for folder in folders[:_MAX_RUNS_NAMED]]
    more = [f"and {len(folders) - len(named)} more"] if len(folders) > len(named) else []
    made = f"{time.strftime('%Y-%m-%d %H:%M')} · {', '.join([*named, *more])}"
    if arguments.out:
        out, stem = Path(arguments.out), "comparison"
    else:
        out, stem = Path(arguments.runs_dir) / "reports", _stem([arm.arm.name for arm in comparison.arms])
    use_cache(Path(arguments.runs_dir) / ".cache")
    contents = {
        out / f"{stem}.html": html_page(comparison, tables, made=made),
        out / f"{stem}.md": document_markdown(comparison, tables),
        out / f"{stem}.tex": document_latex(comparison, tables),
    }
    out.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_text(path, content)
    return list(contents)


def _stem(names: Sequence[str]) -> str:
    text = re.sub(r"[^A-Za-z0-9._=-]+", "-", "-vs-".join(names)).strip("-.")[:_MAX_NAME]
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{text or 'comparison'}"


def main_diff(argv: list[str]) -> int:
    """Print where two runs differ; always 0, as a difference is no failure."""
    parser = CommandParser(
        "diff", "List where two runs differ: settings, code (commit and uncommitted changes), environment."
    )
    for place in ("first", "second"):
        parser.add_argument(place, metavar="RUN", help="a run's name as `atrium runs` prints it, or its end")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--all", action="store_true", help="all lines of a long difference in code")
    parser.add_runs_dir()
    arguments = parser.parse(argv)
    from atrium.compare.run_differences import run_differences  # numpy, for the dashboard's settings

    with files_explained():
        one, other = (find_run(arguments.runs_dir, name) for name in (arguments.first, arguments.second))
        found = run_differences(one, other)
    if arguments.json:
        print_json(asdict(found))
    else:
        _print_differences(found, (one.name, other.name), standard_output(), show_all=arguments.all)
    return 0


def _print_differences(
    found: RunDifferences, names: tuple[str, str], console: Console, *, show_all: bool
) -> None:
    from rich.text import Text

    sections = {"settings": found.settings, "code": found.code, "environment": found.environment}
    for title, differences in sections.items():
        if differences:
            _print_differing(title, differences, names, console)
    if found.code_diff:
        console.print(Text("uncommitted changes", "bold cyan"))
        shown = found.code_diff if show_all else found.code_diff[:_MAX_LINES]
        for line in shown:
            say(console, line, _LINE_STYLES.get(line[:1], ""))
        if more := len(found.code_diff) - len(shown):
            console.print(f"… {more} more lines; --all shows them")
    if found.is_empty:
        console.print("nothing that was recorded differs")
    for problem in found.problems:
        say(console, problem, "yellow")


def _print_differing(
    title: str, differences: Mapping[str, tuple[str, str]], names: tuple[str, str], console: Console
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (title, *names):
        table.add_column(Text(printable(name)), overflow="fold", max_width=60)
    for key, values in differences.items():
        table.add_row(*(Text(printable(cell)) for cell in (key, *values)))
    console.print(table)
    console.print()
