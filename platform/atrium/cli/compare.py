"""`atrium compare`: which differences between arms are real."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.cli.parser import CommandParser, files_explained, pair_of, points
from atrium.document.document import Sentence
from atrium.runs.find import find_run, find_runs
from atrium.views.files import write_report
from atrium.views.terminal import print_document, standard_output, tell

if TYPE_CHECKING:
    from atrium.compare.run_comparison import RunsComparison
    from atrium.compare.training_document import Training
    from atrium.runs.curve_outcomes import CurveOutcome
    from atrium.runs.run_folder import RunFolder

_AT = ("last", "steps", "tokens", "wall_clock")
_MAX_RUNS_NAMED = 12
_EXAMPLES = """\
Runs that differ in their seeds alone form an arm, called after its algorithm. An experiment's name stands for
all of its runs.

  atrium compare                             the latest experiment with two methods or more
  atrium compare 1a2b 3c4d                   two runs
  atrium compare my_experiment               all its runs, by the settings in which they differ
  atrium compare my_experiment --by algorithm.name --baseline grpo --at tokens
  atrium compare my_experiment --label atr="ATR (ours)"
  atrium compare my_experiment --area rollout/reward --steps-to rollout/reward=0.5 --until 40
"""


def _reached(text: str) -> tuple[str, float]:
    """The type of --steps-to: a metric, and the value that it reaches."""
    form = "METRIC=VALUE, such as rollout/reward=0.5"
    metric, value = pair_of(form)(text)
    try:
        return metric, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: write {form}") from None


_REPEATABLE: Sequence[tuple[str, str, Callable[[str], object], str]] = (
    ("--by", "KEY", str, "group by this setting only"),
    ("--label", "OLD=NEW", pair_of("OLD=NEW, such as 'atr=ATR (ours)'"), "rename an arm"),
    (
        "--leave-out",
        "RUN=REASON",
        pair_of("RUN=REASON, such as '1a2b=its node lost power'"),
        "do not count this run, for this reason, which is printed with the result",
    ),
    ("--benchmark", "NAME", str, "only this benchmark"),
    ("--area", "METRIC", str, "also the mean of a training metric over steps 1 to --until"),
    (
        "--steps-to",
        "METRIC=VALUE",
        _reached,
        "also the step at which a training metric reaches a value, at most --until",
    ),
    (
        "--ceiling",
        "METRIC",
        str,
        "also a fit of a training metric's curve by tokens: its ceiling, and how soon",
    ),
)
"""The options that may be given several times: name, value, type, meaning."""


def main(argv: list[str]) -> int:
    """Compare runs; 0 unless they cannot be compared."""
    arguments = comparison_parser("compare", "Compare runs, problem by problem and seed by seed.").parse(argv)
    show_comparison(arguments, is_report=False)
    return 0


def show_comparison(arguments: argparse.Namespace, *, is_report: bool) -> tuple[RunsComparison, Training]:
    """Print a comparison, or of a report what may be written in a paper, and write the files."""
    from atrium.compare.document import WRITTEN, comparison_document, report_name  # numpy

    console = standard_output()
    with files_explained():
        folders, comparison, training = _compared(arguments)
        named = [folder.name for folder in folders[:_MAX_RUNS_NAMED]]
        others = [f"and {len(folders) - len(named)} more"] if len(folders) > len(named) else []
        document = comparison_document(
            comparison,
            training,
            made=f"{time.strftime('%Y-%m-%d %H:%M')} · {', '.join([*named, *others])}",
            claims=_claims(folders) if is_report else (),
        )
        document = replace(document, alerts=(*document.alerts, *_alike(comparison)))
        sections = tuple(one for one in document.sections if (one.key == WRITTEN) == is_report)
        shown = replace(document, sections=sections)
        print_document(console, replace(shown, answer=(), notes=()) if is_report else shown)
        folder, stem = Path(arguments.runs_dir) / "reports", report_name(comparison)
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}"
        if arguments.out:
            folder, stem = Path(arguments.out), "comparison"
        cache = Path(arguments.runs_dir) / ".cache"
        written = [] if arguments.no_files else write_report(document, folder, stem, cache)
    for path in written:
        console.print(f"  {path}", soft_wrap=True)
    return comparison, training


def _alike(comparison: RunsComparison) -> list[Sentence]:
    """Warnings about arms that cannot differ."""
    from atrium.assemble.alike import alike_notes
    from atrium.compare.arms import as_trained

    first = {one.arm.name: next(iter(one.arm.runs.values())) for one in comparison.arms}
    configs = {name: as_trained(read_object(run.config_file)[0]) for name, run in first.items()}
    return [Sentence(line, "warning", key="alike") for line in alike_notes(configs)]


def _claims(folders: Sequence[RunFolder]) -> list[str]:
    from atrium.claim.of_runs import claims_said  # Optuna

    return claims_said(folders)


def _compared(arguments: argparse.Namespace) -> tuple[list[RunFolder], RunsComparison, Training]:
    """The runs that are named, their comparison, and what they recorded in training."""
    from atrium.compare.outcomes import At
    from atrium.compare.run_comparison import compare_runs
    from atrium.compare.training_document import read_training

    outcomes = _outcomes(arguments)
    runs_dir = Path(arguments.runs_dir)
    wanted = arguments.runs or [_default_experiment(runs_dir)]
    folders = find_runs(runs_dir, wanted)
    experiments = {folder.name.partition("/")[0] for folder in folders}
    comparison = compare_runs(
        folders,
        by=arguments.by,
        baseline=arguments.baseline,
        at=At(arguments.at),
        benchmarks=arguments.benchmark,
        effect=arguments.effect,
        chosen={find_run(runs_dir, name).name for name in wanted if name.rstrip("/") not in experiments},
        renamed=dict(arguments.label),
        leave_out=dict(arguments.leave_out),
    )
    training = read_training(
        [one.arm for one in comparison.arms],
        has_intervals=not comparison.planned.is_early,
        outcomes=outcomes,
        ceilings_of=arguments.ceiling,
    )
    return folders, comparison, training


def _default_experiment(runs_dir: Path) -> str:
    """The experiment that is compared where none is named, said in one line."""
    from atrium.compare.default_choice import default_experiment, trainings_by_experiment

    chosen = default_experiment(trainings_by_experiment(runs_dir))
    if chosen is None:
        raise ConfigError(f"there is no experiment in {runs_dir.absolute()}; name the runs to compare")
    tell(standard_output(), f"experiment {chosen}, the latest with two methods or more", "dim")
    return chosen


def comparison_parser(command: str, purpose: str) -> CommandParser:
    """The arguments of `atrium compare` and `atrium report`."""
    parser = CommandParser(command, purpose, _EXAMPLES.replace("atrium compare", f"atrium {command}"))
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="a run's name or its end, or an experiment (default: the latest with two methods or more)",
    )
    parser.add_argument(
        "--baseline",
        metavar="ARM",
        help="an arm by its name, its algorithm or the end of a run's name (default: grpo, else reinforce, "
        "else the arm whose first run started first)",
    )
    for name, value, kind, meaning in _REPEATABLE:
        parser.add_argument(
            name, action="append", default=[], metavar=value, type=kind, help=f"{meaning} (repeatable)"
        )
    parser.add_argument("--until", type=int, metavar="STEP", help="the last step of --area and --steps-to")
    parser.add_argument(
        "--at",
        choices=_AT,
        default="last",
        help="compare at each run's last evaluation (the default), at equal steps, equal generated tokens, "
        "or equal training time",
    )
    parser.add_argument(
        "--effect",
        type=points,
        default="2",
        metavar="POINTS",
        help="the smallest difference of interest, for the number of seeds it needs (default: 2)",
    )
    parser.add_argument("--out", metavar="DIR", help="where the report goes (default: RUNS_DIR/reports)")
    parser.add_argument("--no-files", action="store_true", help="print only")
    parser.add_runs_dir()
    return parser


def _outcomes(arguments: argparse.Namespace) -> list[CurveOutcome]:
    """The outcomes of curves that are asked for."""
    from atrium.runs.curve_outcomes import Area, StepsTo

    until = arguments.until
    if (arguments.area or arguments.steps_to) and (until is None or until < 2):
        raise ConfigError("--area and --steps-to look at the first steps: give --until STEP, 2 or more")
    return [
        *(Area(kind="area", metric=metric, until=until) for metric in arguments.area),
        *(
            StepsTo(kind="steps_to", metric=metric, value=value, until=until)
            for metric, value in arguments.steps_to
        ),
    ]
