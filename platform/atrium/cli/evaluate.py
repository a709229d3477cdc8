"""`atrium evaluate`: a model or a run's checkpoint on benchmarks, all checked before torch is loaded.

Settings are written as for `atrium train`. What is typed is composed and validated in `config.evaluation`;
the evaluation itself is `assemble.evaluation`. At its end scores are printed with both intervals, by level
and subject, and the places of files.
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
evaluation.num_samples for K, grader, rollout, compute. Every finished problem is recorded at once, so an
interrupted evaluation resumes with --resume and repeats nothing."""
_EXAMPLES = """\
examples:
  atrium evaluate model=hub model.source=Qwen/Qwen2.5-Math-1.5B benchmark=aime24 evaluation.num_samples=32
  atrium evaluate --run last                          a run's last checkpoint, as the run evaluates it
  atrium evaluate --run last --best benchmark=math500 evaluation=greedy
  atrium evaluate --resume last                       resume the latest evaluation
  atrium evaluate --regrade last grader=math_tolerance
"""


def main(argv: Sequence[str]) -> int:
    """Evaluate as `argv` says and print what came out; the exit code, or an `AtriumError`."""
    parser = _parser()
    arguments = parser.parse(argv)
    overrides: list[str] = arguments.overrides
    resume: Path | None = None
    if arguments.regrade is not None:
        if arguments.resume is not None or arguments.run is not None:
            parser.error("--regrade judges what is stored; leave out --run and --resume")
        _regrade(arguments.regrade, arguments.runs_dir, overrides, arguments.csv)
        return 0
    if arguments.csv is not None:
        parser.error("--csv belongs to --regrade; `atrium samples --csv` writes an evaluation's rows")
    with files_explained():
        if arguments.resume is not None:
            if overrides or arguments.run is not None:
                parser.error("--resume uses the recorded settings; remove the others")
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
        help="grade stored answers again and say what changed: an evaluation, a run, or a file with gold and "
        "completion (.jsonl, .csv, .parquet), of lm-eval's samples or of lighteval's details",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="with --regrade: write every answer there")
    parser.add_argument("--cfg", action="store_true", help="show the settings instead of evaluating")
    parser.add_runs_dir()
    return parser


def _regrade(stored: str, runs_dir: str, overrides: Sequence[str], csv: Path | None) -> None:
    """Print, and write to `csv`, what the grader that `overrides` name says of stored answers now."""
    from atrium.assemble.regrading import regrade_stored, regraded_document, regraded_rows
    from atrium.runs.sample_exports import write_csv

    with files_explained():
        found = regrade_stored(stored, runs_dir, overrides)
    print_document(standard_output(), regraded_document(found))
    if csv is not None:
        with files_explained():
            write_csv(csv, *regraded_rows(found))
