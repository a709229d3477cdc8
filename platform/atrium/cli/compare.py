"""`atrium compare` and `report`: which differences between arms are real."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, files_explained
from atrium.document.formatting import printable
from atrium.runs.find import find_run, list_runs
from atrium.runs.run_folder import RunFolder
from atrium.views.files import SUFFIXES
from atrium.views.terminal import print_document, standard_output, tell

if TYPE_CHECKING:
    from rich.console import Console

    from atrium.compare.run_comparison import RunsComparison
    from atrium.compare.training_document import Training
    from atrium.document.document import Document
    from atrium.runs.curve_outcomes import CurveOutcome
    from atrium.views.figures.style import FileKind

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
_PICTURES: Mapping[str, FileKind] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}


def main(argv: list[str]) -> int:
    """Compare runs; 0 unless they cannot be compared."""
    arguments = _parser("compare", "Compare runs, problem by problem and seed by seed.").parse(argv)
    from atrium.compare.document import WRITTEN, report_name  # numpy: `--help` answers without it

    with files_explained():
        folders, comparison, training = _compared(arguments)
        console, document = standard_output(), _document(comparison, training, folders)
        shown = tuple(section for section in document.sections if section.key != WRITTEN)
        print_document(console, replace(document, sections=shown))
        written = [] if arguments.no_files else _write(document, report_name(comparison), arguments)
    _print_places(written, console)
    return 0


def main_report(argv: list[str]) -> int:
    """Write a report on runs, and print what may be written of them; 0 unless they cannot be compared."""
    parser = _parser(
        "report",
        "Write a comparison as one HTML file to send, with figures, as a LaTeX table with caption and label\n"
        "and as Markdown, and print the sentences that may be written in a paper.",
    )
    parser.add_argument("--picture", metavar="FILE", help="also one picture of it all, as .png, .svg or .pdf")
    arguments = parser.parse(argv)
    if arguments.picture and Path(arguments.picture).suffix not in _PICTURES:
        raise ConfigError(f"--picture {arguments.picture}: its ending is {', '.join(_PICTURES)}")
    from atrium.claim.of_runs import claims_said
    from atrium.compare.document import WRITTEN, report_name

    with files_explained():
        folders, comparison, training = _compared(arguments)
        console, document = standard_output(), _document(comparison, training, folders, claims_said(folders))
        sentences = tuple(section for section in document.sections if section.key == WRITTEN)
        print_document(console, replace(document, answer=(), sections=sentences, notes=()))
        written = [] if arguments.no_files else _write(document, report_name(comparison), arguments)
        if arguments.picture:
            runs_dir = Path(arguments.runs_dir)
            written.append(_draw(comparison, training, Path(arguments.picture), runs_dir))
    _print_places(written, console)
    return 0


def _compared(arguments: argparse.Namespace) -> tuple[list[RunFolder], RunsComparison, Training]:
    """The runs that are named, their comparison, and what they recorded in training."""
    from atrium.compare.outcomes import At
    from atrium.compare.run_comparison import compare_runs
    from atrium.compare.training_document import read_training

    outcomes = _outcomes(arguments)
    runs_dir = Path(arguments.runs_dir)
    wanted = arguments.runs or [_default_experiment(runs_dir)]
    folders = find_runs(runs_dir, wanted)
    comparison = compare_runs(
        folders,
        by=arguments.by,
        baseline=arguments.baseline,
        at=At(arguments.at),
        benchmarks=arguments.benchmark,
        effect=_share(arguments.effect),
        chosen=named_runs(runs_dir, wanted),
        renamed=_new_names(arguments.label),
        leave_out=_left_out(arguments.leave_out),
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


def _new_names(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        old, has_new, new = text.partition("=")
        if not (has_new and old.strip() and printable(new).strip()):
            raise ConfigError(f"--label {text}: expected OLD=NEW, such as --label 'atr=ATR (ours)'")
        found[old.strip()] = printable(new).strip()
    return found


def _print_places(written: Sequence[Path], console: Console) -> None:
    for path in written:
        console.print(f"  {path}", soft_wrap=True)


def find_runs(runs_dir: Path, wanted: Sequence[str]) -> list[RunFolder]:
    """The runs that names mean, each once; an experiment's name stands for all of its runs."""
    found: dict[str, RunFolder] = {}
    runs = list_runs(runs_dir)
    for name in wanted:
        for run in _members(runs, name) or [find_run(runs_dir, name)]:
            found[str(run.path.resolve())] = run
    return list(found.values())


def named_runs(runs_dir: Path, wanted: Sequence[str]) -> set[str]:
    """The names of the runs that are named one by one, not by their experiment."""
    runs = list_runs(runs_dir)
    return {find_run(runs_dir, name).name for name in wanted if not _members(runs, name)}


def _members(runs: Sequence[RunFolder], experiment: str) -> list[RunFolder]:
    return [run for run in runs if run.name.partition("/")[0] == experiment.rstrip("/")]


def _parser(command: str, purpose: str) -> CommandParser:
    parser = CommandParser(command, purpose, _EXAMPLES.replace("atrium compare", f"atrium {command}"))
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="a run's name or its end, or an experiment (default: the latest with two methods or more)",
    )
    parser.add_argument(
        "--by", action="append", default=[], metavar="KEY", help="group by this setting only (repeatable)"
    )
    parser.add_argument(
        "--baseline",
        metavar="ARM",
        help="an arm by its name, its algorithm or the end of a run's name (default: grpo, else reinforce, "
        "else the arm whose first run started first)",
    )
    _add_exceptions(parser)
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


def _add_exceptions(parser: CommandParser) -> None:
    """The options that name single arms and runs."""
    parser.add_argument(
        "--label", action="append", default=[], metavar="OLD=NEW", help="rename an arm (repeatable)"
    )
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="RUN=REASON",
        help="do not count this run, for this reason, which is printed with the result (repeatable)",
    )


def _left_out(given: Sequence[str]) -> dict[str, str]:
    """The reasons by the runs that are not to count."""
    found = {}
    for text in given:
        run, _, reason = text.partition("=")
        if not run or not reason.strip():
            raise ConfigError(
                f"--leave-out {text}: write RUN=REASON, such as 1a2b=its node lost power; the reason is "
                "printed with the result"
            )
        found[run] = reason.strip()
    return found


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


def _outcomes(arguments: argparse.Namespace) -> list[CurveOutcome]:
    """The outcomes of curves that are asked for."""
    from atrium.runs.curve_outcomes import Area, StepsTo

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


def _document(
    comparison: RunsComparison, training: Training, folders: Sequence[RunFolder], claims: Sequence[str] = ()
) -> Document:
    """The comparison's document, which names when and of which runs it was made."""
    from atrium.compare.document import comparison_document

    named = [folder.name for folder in folders[:_MAX_RUNS_NAMED]]
    others = [f"and {len(folders) - len(named)} more"] if len(folders) > len(named) else []
    made = f"{time.strftime('%Y-%m-%d %H:%M')} · {', '.join([*named, *others])}"
    return comparison_document(comparison, training, made=made, claims=claims)


def _write(document: Document, name: str, arguments: argparse.Namespace) -> list[Path]:
    """Write the report's three files; their paths."""
    from atrium.base.atomic import write_text
    from atrium.views.figures.style import use_cache
    from atrium.views.files import rendered

    out, stem = Path(arguments.runs_dir) / "reports", f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    if arguments.out:
        out, stem = Path(arguments.out), "comparison"
    use_cache(Path(arguments.runs_dir) / ".cache")
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{stem}.{suffix}" for suffix in SUFFIXES]
    for path, suffix in zip(paths, SUFFIXES, strict=True):
        write_text(path, rendered(document, suffix))
    return paths


def _draw(comparison: RunsComparison, training: Training, path: Path, runs_dir: Path) -> Path:
    """Write the picture, as what its name ends in."""
    from atrium.base.atomic import replacing
    from atrium.compare.document_figures import picture
    from atrium.views.figures.sheet import COLUMN_INCHES, file
    from atrium.views.figures.style import use_cache

    use_cache(runs_dir / ".cache")
    title, figures = picture(comparison, training.rewards)
    with replacing(path) as temporary:
        temporary.write_bytes(file(figures, _PICTURES[path.suffix], inches=COLUMN_INCHES[2], title=title))
    return path
