"""`atrium atlas`: which methods have the same gradient, on stored rollouts or on synthetic ones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, present, whole
from atrium.config.method_files import resolve_preset
from atrium.config.presets import read_presets
from atrium.runs.find import find_run
from atrium.views.terminal import waiting

if TYPE_CHECKING:
    from atrium.theory.atlas import Drift, Rollouts

_MAX_GROUPS = 16
_COLUMNS = ("problem_id", "reward", "logprobs", "ratio", "own")
_EXAMPLES = """\
examples:
  atrium atlas                       every shipped method, on synthetic rollouts
  atrium atlas last                  on the rollouts of the last run, also with the drift that it recorded
  atrium atlas --methods grpo gspo atr cispo --spread 0.05 0.5
"""


def main(argv: Sequence[str]) -> int:
    """Compute, print and draw; `ConfigError` for a name that is no method, a run without rollouts."""
    arguments = _parser().parse(argv)
    names = arguments.methods
    presets = [resolve_preset(name) for name in dict.fromkeys(names)] if names else read_presets()
    rows = _stored(arguments.run, Path(arguments.runs_dir), arguments.batches) if arguments.run else []

    # They import torch, after every mistake has been found.
    from atrium.theory import atlas
    from atrium.theory.atlas_document import atlas_document, atlas_pictures, records

    drifts = _drifts(arguments.spread, has_own=bool(rows))
    rollouts: list[Rollouts] = []
    if rows:
        rollouts = [one for step in rows if (one := atlas.recorded(step, _MAX_GROUPS)) is not None]
        if not rollouts:
            raise ConfigError(f"{arguments.run}: its rollouts hold no log-probabilities; choose another run")
        source = f"{len(rollouts)} stored steps of {arguments.run}, at most {_MAX_GROUPS} groups of each"
    else:
        rollouts = [atlas.synthetic(seed) for seed in range(arguments.batches)]
        source = f"{len(rollouts)} batches of random rollouts with rewards of 0 and 1"
    methods = {one.name: one.method for one in presets}
    left_out = [name for name, one in methods.items() if not all(atlas.can_compute(one, d) for d in drifts)]
    methods = {name: one for name, one in methods.items() if name not in left_out}
    if len(methods) < 2:
        raise ConfigError("atrium atlas compares methods: name two or more that compare sampled tokens")
    with waiting("computing gradients"):
        found = [atlas.partition(methods, rollouts, drift) for drift in drifts]
    present(
        arguments,
        {"source": source, "left_out": left_out, "partitions": records(found)},
        lambda: atlas_document(found, source, left_out),
        lambda: atlas_pictures(found),
    )
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "atlas",
        "Show which methods have the same gradient on the same rollouts, and so cannot differ: with one\n"
        "update per batch, with rollouts of an earlier policy or of another engine, and as the policy moves\n"
        "away during several updates per batch. Log-probabilities suffice: there is no model, no training.",
        _EXAMPLES,
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run with stored rollouts (default: synthetic ones)"
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="ALG", help="files of conf/algorithm (default: all)"
    )
    parser.add_argument(
        "--spread",
        nargs="+",
        type=_spread,
        default=[0.02, 0.1, 1.0],
        metavar="X",
        help="standard deviations of log-ratios in nats, for several updates per batch (default: 0.02 0.1 1)",
    )
    parser.add_argument("--batches", type=whole(1), default=6, metavar="N", help="batches (default: 6)")
    parser.add_runs_dir()
    parser.add_figures()
    return parser


def _spread(text: str) -> float:
    if not 0.0 < float(text) <= 10.0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, at most 10, got {text}")
    return float(text)


def _drifts(spreads: Sequence[float], *, has_own: bool) -> list[Drift]:
    from atrium.theory.atlas import Drift

    return [
        Drift(name="one update"),
        Drift(name="stale rollouts", staleness=0.1),
        Drift(name="other engine", mismatch=0.01),
        *([Drift(name="as recorded", spread=None)] if has_own else []),
        *(Drift(name=f"spread {spread:g}", spread=spread) for spread in spreads),
    ]


def _stored(run: str, runs_dir: Path, num_steps: int) -> list[list[dict[str, object]]]:
    """Return the rows of some of a run's steps, spread evenly over the run."""
    from atrium.runs.sample_files import read_samples

    folder = find_run(runs_dir, run)
    paths = sorted(folder.rollouts_dir.glob("*.parquet"))
    if not paths:
        raise ConfigError(
            f"{run} has no stored rollouts; choose another run, or leave it out for synthetic ones"
        )
    every = max(1, len(paths) // num_steps)
    return [read_samples(path, _COLUMNS) for path in paths[::every][:num_steps]]
