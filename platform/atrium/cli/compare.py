"""`atrium compare`: verdicts on the differences between arms."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.base.recorded import read_object
from atrium.cli.comparison import asked_outcomes, comparison_parser
from atrium.cli.parser import files_explained
from atrium.document.document import Sentence
from atrium.runs.find import find_run, find_runs
from atrium.views.files import write_report
from atrium.views.terminal import print_document, standard_output, tell

if TYPE_CHECKING:
    from atrium.compare.run_comparison import RunsComparison
    from atrium.compare.training_document import Training
    from atrium.runs.run_folder import RunFolder

_MAX_RUNS_NAMED = 12


def main(argv: list[str]) -> int:
    """Compare runs and return exit code 0; raise `AtriumError` if they cannot be compared."""
    arguments = comparison_parser("compare", "Compare runs, paired by problem and seed.").parse(argv)
    show_comparison(arguments, is_report=False)
    return 0


def show_comparison(arguments: argparse.Namespace, *, is_report: bool) -> tuple[RunsComparison, Training]:
    """Print a comparison, and write its files unless --no-files is given.

    If `is_report` is set, only the section with the sentences for a paper is printed. Otherwise, all other
    sections are printed. Returns the comparison, and the training records of its runs.
    """
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
    """Return warnings about arms whose methods have the same gradients."""
    from atrium.assemble.alike import alike_notes
    from atrium.compare.arms import as_trained

    first = {one.arm.name: next(iter(one.arm.runs.values())) for one in comparison.arms}
    configs = {name: as_trained(read_object(run.config_file)[0]) for name, run in first.items()}
    return [Sentence(line, "warning", key="alike") for line in alike_notes(configs)]


def _claims(folders: Sequence[RunFolder]) -> list[str]:
    from atrium.claim.of_runs import claims_said  # Optuna

    return claims_said(folders)


def _compared(arguments: argparse.Namespace) -> tuple[list[RunFolder], RunsComparison, Training]:
    """Return the selected runs, their comparison, and their training records."""
    from atrium.compare.default_choice import named_by_default
    from atrium.compare.outcomes import At
    from atrium.compare.run_comparison import compare_runs
    from atrium.compare.training_document import read_training

    outcomes = asked_outcomes(arguments)
    runs_dir = Path(arguments.runs_dir)
    wanted = arguments.runs
    if not wanted:
        wanted = [named_by_default(runs_dir)]
        tell(standard_output(), f"experiment {wanted[0]}, the latest with two methods or more", "dim")
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
