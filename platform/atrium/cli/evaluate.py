"""`atrium evaluate`: evaluation of a model or a run's checkpoint on benchmarks.

Settings have the syntax of `atrium train`. `config.evaluation` composes and validates them before torch is
loaded, and `assemble.evaluation` runs the evaluation. The command then prints the scores, also by level and
subject, with intervals over problems and over samples, and the paths of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atrium.assemble.beginning import begin_evaluation
from atrium.assemble.evaluation_choice import interrupted_evaluation, new_evaluation
from atrium.cli.parser import CommandParser, files_explained
from atrium.runs.evaluation_document import evaluation_document
from atrium.runs.run_folder import RunFolder
from atrium.views.terminal import print_document, print_json, standard_output

_DESCRIPTION = """\
Evaluate a model on benchmarks: Mean@K, Pass@k, Maj@K and Pass^k with their intervals.

Settings are key=value, as for `atrium train`: model, benchmark, evaluation (sampled, literature, greedy),
evaluation.num_samples for K, grader, rollout, compute. Finished problems are recorded at once, so an
interrupted evaluation can be resumed with --resume without repeating them."""
_EXAMPLES = """\
examples:
  atrium evaluate model=hub model.source=Qwen/Qwen2.5-Math-1.5B benchmark=aime24 evaluation.num_samples=32
  atrium evaluate --run last                          the last run's last checkpoint, with its own settings
  atrium evaluate --run last --best benchmark=math500 evaluation=greedy
  atrium evaluate --resume last                       resume the latest evaluation
  atrium evaluate --regrade last grader=math_tolerance
"""


def main(argv: Sequence[str]) -> int:
    """Run an evaluation, grade stored answers again, or print settings; return 0 or raise `AtriumError`."""
    parser = _parser()
    arguments = parser.parse(argv)
    overrides: list[str] = arguments.overrides
    resume: Path | None = None
    if arguments.regrade is not None:
        if arguments.resume is not None or arguments.run is not None:
            parser.error(
                "--regrade cannot be combined with --run or --resume, since it grades stored answers; remove "
                "them"
            )
        _regrade(arguments.regrade, arguments.runs_dir, overrides, arguments.csv)
        return 0
    if arguments.csv is not None:
        parser.error(
            "--csv requires --regrade; to write the rows of an evaluation, use `atrium samples --csv`"
        )
    with files_explained():
        if arguments.resume is not None:
            if overrides or arguments.run is not None:
                parser.error(
                    "--resume cannot be combined with other options, since it uses the recorded settings; "
                    "remove them"
                )
            settings, resume = interrupted_evaluation(arguments.resume, arguments.runs_dir)
        else:
            settings = new_evaluation(
                overrides,
                run=arguments.run,
                best=arguments.best,
                step=arguments.step,
                runs_dir=arguments.runs_dir,
            )
    if arguments.cfg:
        print_json(settings.as_record())
    else:
        folder = begin_evaluation(settings, overrides, resume)
        with files_explained():
            print_document(standard_output(), evaluation_document(RunFolder(folder)))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("evaluate", _DESCRIPTION, _EXAMPLES)
    parser.add_overrides()
    parser.add_argument(
        "--run", metavar="RUN", help="evaluate a checkpoint of this run: `last`, its name, or its folder"
    )
    parser.add_checkpoint()
    parser.add_argument(
        "--resume", metavar="EVALUATION", help="resume an evaluation: `last`, its name, or its folder"
    )
    parser.add_argument(
        "--regrade",
        metavar="STORED",
        help="grade stored answers again and show changes: those of an evaluation, a run, a file with gold "
        "and completion (.jsonl, .csv, .parquet), lm-eval's samples or lighteval's details",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="with --regrade: write all answers to FILE")
    parser.add_argument("--cfg", action="store_true", help="show the settings instead of evaluating")
    parser.add_runs_dir()
    return parser


def _regrade(stored: str, runs_dir: str, overrides: Sequence[str], csv: Path | None) -> None:
    """Grade stored answers again and print the verdicts; write the verdicts to `csv` if it is given.

    `stored` names an evaluation, a run, or a file of answers. The recorded grader is used unless `overrides`
    choose another one.
    """
    from atrium.assemble.regrading import regrade_stored, regraded_document, regraded_rows
    from atrium.runs.sample_exports import write_csv

    with files_explained():
        found = regrade_stored(stored, runs_dir, overrides)
    print_document(standard_output(), regraded_document(found))
    if csv is not None:
        with files_explained():
            write_csv(csv, *regraded_rows(found))
