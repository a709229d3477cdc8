"""`atrium samples`: an evaluation by problem, why each answer counted, and its rows for other programs."""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from atrium.base.errors import RunFolderError
from atrium.cli.parser import CommandParser, files_explained
from atrium.document.formatting import counted, printable, share
from atrium.runs.find import WITH_SAMPLES, find_run
from atrium.runs.layout import step_of
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_exports import write_csv, write_lighteval, write_lm_eval
from atrium.runs.sample_files import Row, read_samples
from atrium.views.terminal import print_cells, say, standard_output

_DESCRIPTION = """\
Show an evaluation problem by problem: how many answers counted, which were given, and why.

With --csv, --lm-eval or --lighteval the rows are written for other programs: one line per sample, or a file
per benchmark as lm-evaluation-harness or lighteval writes it."""
_EXAMPLES = """\
examples:
  atrium samples last                              a line per problem of the latest evaluation
  atrium samples last --problem aime24-7           every answer to it: extracted, verdict, reason
  atrium samples last --csv samples.csv --lm-eval exported
"""
_MAX_SHOWN_CHARS = 60


def main(argv: Sequence[str]) -> int:
    """Show or write what `argv` asks for; the exit code, or an `AtriumError`."""
    arguments = _parser().parse(argv)
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run, last=WITH_SAMPLES)
        evaluations = read_rows(folder, benchmark=arguments.benchmark, step=arguments.step)
        _write(arguments, evaluations)
        console = standard_output()
        for name, rows in evaluations.items():
            if arguments.problem is None:
                _print_problems(name, rows, console)
            else:
                _print_answers(name, rows, arguments.problem, console)
    return 0


def read_rows(
    folder: RunFolder, *, benchmark: str | None = None, step: int | None = None
) -> dict[str, list[Row]]:
    """The rows of the latest evaluation of each benchmark, or of those that are asked for, by name.

    Raises `RunFolderError` where there are none.
    """
    stored: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in sorted(folder.evaluations_dir.glob("*/*.parquet")):
        found = step_of(path.stem)
        if found is not None and benchmark in (None, path.parent.name) and step in (None, found):
            stored[path.parent.name][found] = path
    if not stored:
        asked = "".join(f" {key} {value}" for key, value in (("of", benchmark), ("at step", step)) if value)
        raise RunFolderError(f"{folder.path} holds no samples of an evaluation{asked}")
    return {name: read_samples(paths[max(paths)]) for name, paths in stored.items()}


def _parser() -> CommandParser:
    parser = CommandParser("samples", _DESCRIPTION, _EXAMPLES)
    parser.add_run()
    parser.add_argument("--benchmark", metavar="NAME", help="this benchmark only (default: all)")
    parser.add_argument("--step", type=int, metavar="N", help="at this step (default: the latest)")
    parser.add_argument("--problem", metavar="ID", help="every answer to this problem")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line per sample")
    parser.add_argument("--lm-eval", type=Path, metavar="DIR", help="write samples as lm-eval does")
    parser.add_argument("--lighteval", type=Path, metavar="DIR", help="write details as lighteval does")
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


def _print_problems(name: str, rows: Sequence[Row], console: Console) -> None:
    by_problem: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_problem[row["problem_id"]].append(row)
    table = []
    for problem_id, samples in by_problem.items():
        answers = [sample["extracted"] for sample in samples if sample["extracted"] is not None]
        most = max(answers, key=answers.count, default="")
        num_cut = sum(sample["finish_reason"] == "length" for sample in samples)
        cells = (
            problem_id,
            f"{sum(sample['is_correct'] for sample in samples)}/{len(samples)}",
            samples[0]["gold"],
            f"{most} ({answers.count(most)})" if answers else "none",
            f"{sum(sample['num_tokens'] for sample in samples) / len(samples):.0f}",
            share(num_cut / len(samples)),
        )
        table.append([printable(text)[:_MAX_SHOWN_CHARS] for text in cells])
    say(console, f"{name}: {counted(len(by_problem), 'problem')}", "bold")
    titles = ("problem", "correct", "gold", "most frequent answer", "length", "truncated")
    print_cells(console, titles, table, margins=(0, 1))


def _print_answers(name: str, rows: Sequence[Row], problem_id: str, console: Console) -> None:
    samples = [row for row in rows if row["problem_id"] == problem_id]
    if not samples:
        raise RunFolderError(f"{name} has no problem {problem_id!r}; `atrium samples` lists them")
    say(console, f"{name} {problem_id}", "bold")
    for role, text in json.loads(samples[0].get("turns") or "[]"):
        say(console, f"  {role}: {text}", "dim")
    say(console, f"  {samples[0]['question']}\n  gold: {samples[0]['gold']}")
    table = [
        (
            str(sample["sample_index"]),
            "yes" if sample["is_correct"] else "no",
            "none" if sample["extracted"] is None else sample["extracted"],
            sample["verdict"].replace("_", " "),
            sample["reason"],
            sample["finish_reason"],
        )
        for sample in samples
    ]
    titles = ("sample", "counts", "extracted", "verdict", "reason", "ended by")
    print_cells(console, titles, table, margins=(0, 1), wraps=True)
