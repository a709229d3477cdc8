"""`atrium samples`: show an evaluation's answers and verdicts by problem, or export them to other formats."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from atrium.cli.parser import CommandParser, files_explained, whole
from atrium.runs.find import WITH_SAMPLES, find_run
from atrium.runs.sample_exports import write_csv, write_lighteval, write_lm_eval
from atrium.runs.sample_files import Row, read_evaluated
from atrium.runs.samples_document import samples_document
from atrium.views.terminal import print_document, standard_output

_DESCRIPTION = """\
Show an evaluation by problem: the number of correct answers, the answers, and the reasons for verdicts.

--csv, --lm-eval and --lighteval write the rows for other programs: one line per sample, or a file per
benchmark in the format of lm-evaluation-harness or lighteval."""
_EXAMPLES = """\
examples:
  atrium samples last                              a line per problem of the latest evaluation
  atrium samples last --problem aime24-7           every answer to a problem: extracted, verdict, reason
  atrium samples last --csv samples.csv --lm-eval exported
"""


def main(argv: Sequence[str]) -> int:
    """Show or export the samples selected in `argv` and return the exit code; may raise `AtriumError`."""
    arguments = _parser().parse(argv)
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run, last=WITH_SAMPLES)
        evaluations = read_evaluated(folder, benchmark=arguments.benchmark, step=arguments.step)
        _write(arguments, evaluations)
        print_document(standard_output(), samples_document(evaluations, arguments.problem))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("samples", _DESCRIPTION, _EXAMPLES)
    parser.add_run()
    parser.add_argument("--benchmark", metavar="NAME", help="only this benchmark (default: all)")
    parser.add_argument("--step", type=whole(0), metavar="N", help="step of the evaluation (default: latest)")
    parser.add_argument("--problem", metavar="ID", help="show every answer to this problem")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line per sample")
    parser.add_argument("--lm-eval", type=Path, metavar="DIR", help="write samples in lm-eval format")
    parser.add_argument("--lighteval", type=Path, metavar="DIR", help="write details in lighteval format")
    return parser


def _write(arguments: argparse.Namespace, evaluations: dict[str, list[Row]]) -> None:
    date = time.strftime("%Y-%m-%dT%H-%M-%S")
    if arguments.csv is not None:
        fields = list(dict.fromkeys(key for rows in evaluations.values() for row in rows[:1] for key in row))
        rows = [{"benchmark": name, **row} for name, own in evaluations.items() for row in own]
        write_csv(arguments.csv, rows, ["benchmark", *fields])
    for name, rows in evaluations.items():
        if arguments.lm_eval is not None:
            arguments.lm_eval.mkdir(parents=True, exist_ok=True)
            write_lm_eval(arguments.lm_eval / f"samples_{name}_{date}.jsonl", name, rows)
        if arguments.lighteval is not None:
            arguments.lighteval.mkdir(parents=True, exist_ok=True)
            write_lighteval(arguments.lighteval / f"details_{name}_{date}.parquet", name, rows)
