"""`atrium import`: import results of other programs as runs of an experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, files_explained, pair_of, whole
from atrium.views.terminal import print_document, standard_output, tell

if TYPE_CHECKING:
    from atrium.imports.answers import Source

_DESCRIPTION = """\
Import results of other programs as runs of kind `imported`; compare, report, show and the dashboard accept
them like other runs. SOURCE is a table (CSV, TSV, JSONL, Parquet) with a row per answer, a file of lm-eval,
lighteval, TRL, verl, prime-rl, W&B, MLflow or TensorBoard, or a directory of them."""
_EXAMPLES = """\
examples:
  atrium import results.csv --experiment others
  atrium import results.csv --experiment others --map method=model score=acc --dry-run
  atrium import a.jsonl --experiment others --method ours --seed 3 --benchmark aime24
  atrium import run-abc.wandb --experiment others --map method=algorithm.name
"""


def main(argv: Sequence[str]) -> int:
    """Import the sources in `argv` and return the exit code; raise `AtriumError` for a failed import."""
    arguments = _parser().parse(argv)
    from atrium.imports.answers import Stated
    from atrium.imports.columns import columns_by_role
    from atrium.imports.document import import_document
    from atrium.imports.importing import import_files
    from atrium.imports.wandb_server import SCHEME, fetched

    console = standard_output()

    def say(source: Source) -> None:
        tell(console, f"{source.path}: {source.format}", "bold")
        for line in source.mapping:
            tell(console, f"  {line}", "dim")

    if arguments.correct_at is not None and not math.isfinite(arguments.correct_at):
        raise ConfigError(f"--correct-at must be a finite number, got {arguments.correct_at}")
    stated = Stated(
        method=arguments.method,
        seed=arguments.seed,
        benchmark=arguments.benchmark,
        step=arguments.step,
        correct_at=arguments.correct_at,
        incomplete=arguments.incomplete,
        columns=columns_by_role(arguments.map),
    )
    cache = Path(arguments.runs_dir) / ".cache" / "wandb"
    with files_explained():
        found = import_files(
            [fetched(str(one), cache) if str(one).startswith(SCHEME) else one for one in arguments.sources],
            arguments.experiment,
            Path(arguments.runs_dir),
            stated,
            settings=dict(arguments.setting),
            is_dry=arguments.dry_run,
            on_source=say,
        )
    print_document(console, import_document(found, arguments.experiment, is_dry=arguments.dry_run))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("import", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "sources",
        nargs="+",
        type=Path,
        metavar="SOURCE",
        help="files, directories, or wandb:ENTITY/PROJECT[/RUN]",
    )
    parser.add_argument("--experiment", required=True, metavar="NAME", help="experiment for the new runs")
    parser.add_argument(
        "--map",
        nargs="+",
        action="extend",
        default=[],
        metavar="ROLE=COLUMN",
        help="the columns with the roles method, seed, benchmark, step, problem, question, sample, score, "
        "gold, text and tokens, or a YAML file of such pairs (default: by name)",
    )
    parser.add_argument("--method", default="", metavar="NAME", help="the method of all rows")
    parser.add_argument("--seed", type=whole(0), metavar="N", help="the random seed of all rows")
    parser.add_argument("--benchmark", default="", metavar="NAME", help="the benchmark of all rows")
    parser.add_argument("--step", type=whole(0), metavar="N", help="the training step of all rows")
    parser.add_argument(
        "--correct-at", type=float, metavar="X", help="count scores >= X as correct (default: 1 only)"
    )
    parser.add_argument(
        "--incomplete",
        action="store_true",
        help="truncate all problems to the smallest number of answers, and read W&B files of killed runs",
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        type=pair_of("KEY=VALUE, such as model.source=Qwen/Qwen3-1.7B"),
        metavar="KEY=VALUE",
        help="a setting of all runs, by its name in Atrium (repeatable)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the runs without writing them")
    parser.add_runs_dir()
    return parser
