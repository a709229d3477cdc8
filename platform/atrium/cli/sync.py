"""`atrium sync`: delivery of complete runs, or of records missed during training, to trackers."""

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
Rows that a tracker already has are not sent again, so the command can be repeated safely.

  atrium sync last --to mlflow                      to runs/mlflow.db, or MLFLOW_TRACKING_URI
  atrium sync my_experiment --to mlflow --uri http://127.0.0.1:5000
  atrium sync my_experiment --to wandb --offline    then `wandb sync` when a network is available
  atrium sync my_experiment --to tensorboard        then `tensorboard --logdir runs`
  atrium sync my_experiment --to trackio            then `trackio show --project atrium`
"""


def main(argv: list[str]) -> int:
    """Send runs to trackers and return the exit code: 1 if a run could not be sent, else 0."""
    arguments = _parser().parse(argv)
    with files_explained():
        folders = find_runs(Path(arguments.runs_dir), arguments.runs)
        return _deliver_all(folders, arguments)


def _parser() -> CommandParser:
    parser = CommandParser("sync", "Send runs to a tracker: metrics, settings, tags, files.", _EXAMPLES)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's name or its end, or an experiment")
    parser.add_argument(
        "--to", action="append", choices=KINDS, required=True, help="the tracker (repeatable)"
    )
    parser.add_argument("--uri", metavar="URI", help="URI of MLflow, instead of that in the run's settings")
    parser.add_argument(
        "--offline", action="store_true", default=None, help="write W&B files for a later `wandb sync`"
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
                # Report any exception of a tracker's package in one line, and send the other runs.
                num_failed += 1
                delivery.report(error)
                console.print(f"{folder.name}: {kind}: {describe(error)}", soft_wrap=True)
                continue
            finally:
                delivery.close()
            known = delivery.delivered
            new = f"sent up to step {known.step}" if known.step != before else "already up to date"
            console.print(f"{folder.name}: {kind}: {new}   {known.where}", soft_wrap=True)
    return 1 if num_failed else 0
