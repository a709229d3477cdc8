"""`atrium sync`: bring runs to trackers, whatever was missed while they trained, or old ones."""

from __future__ import annotations

import argparse
from pathlib import Path

from atrium.base.errors import AtriumError
from atrium.cli.parser import CommandParser, files_explained
from atrium.runs.find import find_runs
from atrium.runs.mirrors.targets import KINDS, delivery_of
from atrium.runs.run_folder import RunFolder
from atrium.views.terminal import standard_output

_EXAMPLES = """\
What a tracker has already is not sent again, so repeating this is safe.

  atrium sync last --to mlflow                      into runs/mlflow.db, or MLFLOW_TRACKING_URI
  atrium sync my_experiment --to mlflow --uri http://127.0.0.1:5000
  atrium sync my_experiment --to wandb --offline    then `wandb sync` whenever there is a network
  atrium sync my_experiment --to tensorboard        then `tensorboard --logdir runs`
  atrium sync my_experiment --to trackio            then `trackio show --project atrium`
"""


def main(argv: list[str]) -> int:
    """Deliver runs; 1 where some could not be delivered."""
    arguments = _parser().parse(argv)
    with files_explained():
        folders = find_runs(Path(arguments.runs_dir), arguments.runs)
        return _deliver_all(folders, arguments)


def _parser() -> CommandParser:
    parser = CommandParser("sync", "Bring runs to a tracker: metrics, settings, tags, files.", _EXAMPLES)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's name or its end, or an experiment")
    parser.add_argument(
        "--to", action="append", choices=KINDS, required=True, help="the tracker (repeatable)"
    )
    parser.add_argument("--uri", metavar="URI", help="MLflow's, instead of the one in the run's settings")
    parser.add_argument(
        "--offline", action="store_true", default=None, help="W&B without a network, for `wandb sync` later"
    )
    parser.add_runs_dir()
    return parser


def _deliver_all(folders: list[RunFolder], arguments: argparse.Namespace) -> int:
    from atrium.runs.mirrors.delivery import describe

    console = standard_output()
    num_failed = 0
    for folder in folders:
        for kind in arguments.to:
            delivery = delivery_of(folder, kind, uri=arguments.uri, offline=arguments.offline)
            before = delivery.delivered.step
            try:
                delivery.deliver()
            except AtriumError as error:
                num_failed += 1
                console.print(f"{folder.name}: {error}", soft_wrap=True)
                continue
            except Exception as error:
                # Whatever a tracker's package raises: one line, and the next run has its turn.
                num_failed += 1
                delivery.report(error)
                console.print(f"{folder.name}: {kind}: {describe(error)}", soft_wrap=True)
                continue
            finally:
                delivery.close()
            known = delivery.delivered
            new = f"up to step {known.step}" if known.step != before else "nothing new"
            console.print(f"{folder.name}: {kind} has it, {new}   {known.where}", soft_wrap=True)
    return 1 if num_failed else 0
