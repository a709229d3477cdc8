"""`atrium runs`: list the runs as a table or as JSON."""

from __future__ import annotations

from atrium.cli.parser import CommandParser, files_explained
from atrium.runs.find import list_runs
from atrium.runs.listing import described, listing_document
from atrium.runs.reader import read_overview
from atrium.runs.status import RunState
from atrium.views.terminal import print_document, print_json, standard_output


def main(argv: list[str]) -> int:
    """List the runs, latest last."""
    parser = CommandParser("runs", "List the runs, latest last, with their state and latest scores.")
    parser.add_argument("text", nargs="?", default="", help="only runs whose name contains this text")
    parser.add_argument("--all", action="store_true", help="also runs that failed to start")
    parser.add_json("one JSON array with all recorded values")
    parser.add_runs_dir()
    arguments = parser.parse(argv)
    with files_explained():
        found = list_runs(arguments.runs_dir)
        runs = [read_overview(run) for run in found if arguments.text.lower() in run.name.lower()]
        shown = [run for run in runs if arguments.all or run.state is not RunState.FAILED_START]
        if arguments.json:
            print_json([described(run) for run in shown])
        else:
            num_hidden = len(runs) - len(shown)
            document = listing_document(shown, num_hidden, arguments.runs_dir, arguments.text)
            print_document(standard_output(), document)
    return 0
