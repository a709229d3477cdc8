"""`atrium diff`: the differences between two runs."""

from __future__ import annotations

from dataclasses import asdict

from atrium.cli.parser import CommandParser, files_explained
from atrium.runs.find import find_run
from atrium.views.terminal import print_document, print_json, standard_output

_MAX_LINES = 60


def main(argv: list[str]) -> int:
    """Print the differences between two runs; return 0 whether or not there are any."""
    parser = CommandParser(
        "diff", "List how two runs differ: settings, code (commit and uncommitted changes), environment."
    )
    for place in ("first", "second"):
        parser.add_argument(place, metavar="RUN", help="a run's name as `atrium runs` prints it, or its end")
    parser.add_json("one JSON object")
    parser.add_argument("--all", action="store_true", help="show all lines of a long code diff")
    parser.add_runs_dir()
    arguments = parser.parse(argv)
    from atrium.compare.run_differences import (  # imports numpy
        differences_document,
        run_differences,
    )

    with files_explained():
        one, other = (find_run(arguments.runs_dir, name) for name in (arguments.first, arguments.second))
        found = run_differences(one, other)
    if arguments.json:
        print_json(asdict(found))
    else:
        num_lines = None if arguments.all else _MAX_LINES
        document = differences_document(found, (one.name, other.name), num_lines=num_lines)
        print_document(standard_output(), document)
    return 0
