"""`atrium atlas`: groups of methods with equal gradients on stored or synthetic rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atrium.assemble.atlas import NUM_BATCHES, SPREADS, Steps, make_atlas, steps_of_run, steps_of_table
from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, positive, present, whole
from atrium.config.method_files import resolve_preset
from atrium.config.presets import read_presets
from atrium.imports.columns import columns_by_role
from atrium.runs.find import find_run
from atrium.views.terminal import waiting

_EXAMPLES = """\
examples:
  atrium atlas                       every shipped method, on synthetic rollouts
  atrium atlas last                  on the rollouts of the last run, also with their recorded drift
  atrium atlas rollouts.parquet      on a table of another program with log-probabilities per token
  atrium atlas --methods grpo gspo atr cispo --spread 0.05 0.5
"""


def main(argv: Sequence[str]) -> int:
    """Print and draw the groups of methods with equal gradients, and return 0.

    Raises `ConfigError` for an unknown method, and for a run without stored rollouts.
    """
    arguments = _parser().parse(argv)
    names = arguments.methods
    presets = [resolve_preset(name) for name in dict.fromkeys(names)] if names else read_presets()
    steps: Steps = ()
    if arguments.run and Path(arguments.run).is_file():
        steps = steps_of_table(Path(arguments.run), columns_by_role(arguments.map), arguments.batches)
    elif arguments.map:
        raise ConfigError(
            "--map names columns of a table, so it cannot be used with a run; give the path of a table, "
            "or remove --map"
        )
    elif arguments.run:
        steps = steps_of_run(find_run(Path(arguments.runs_dir), arguments.run), arguments.batches)
    spreads, num_batches = arguments.spread, arguments.batches
    with waiting("computing gradients"):
        made = make_atlas(presets, steps, arguments.run, spreads=spreads, num_batches=num_batches)
    present(arguments, made.numbers, lambda: made.document, lambda: made.pictures)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "atlas",
        "Show which methods have the same gradient on the same rollouts: with one update per batch, with\n"
        "rollouts of an earlier policy or of another engine, and as the policy changes during several\n"
        "updates per batch. Only log-probabilities are needed, no model and no training.",
        _EXAMPLES,
    )
    parser.add_argument(
        "run",
        nargs="?",
        default="",
        metavar="RUN|FILE",
        help="a run with stored rollouts, or a table of rollouts (default: synthetic ones)",
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="ALG", help="files of conf/algorithm (default: all)"
    )
    parser.add_argument(
        "--spread",
        nargs="+",
        type=positive(10.0),
        default=SPREADS,
        metavar="X",
        help="standard deviations of log-ratios in nats, for several updates per batch (default: 0.02 0.1 1)",
    )
    parser.add_argument(
        "--batches", type=whole(1), default=NUM_BATCHES, metavar="N", help="number of batches (default: 6)"
    )
    parser.add_argument(
        "--map",
        nargs="+",
        default=[],
        metavar="ROLE=COLUMN",
        help="columns of a table, as for `atrium import`",
    )
    parser.add_runs_dir()
    parser.add_figures()
    return parser
