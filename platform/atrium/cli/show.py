"""`atrium show`: a run's settings, curves, evaluations, and answers before and after training."""

from __future__ import annotations

from collections.abc import Mapping

from atrium.base.errors import AtriumError
from atrium.cli.parser import CommandParser, files_explained, whole
from atrium.runs.document import run_document
from atrium.runs.find import find_run
from atrium.views.terminal import print_document, standard_output


def main(argv: list[str]) -> int:
    """Print the document of one run and return the exit code."""
    parser = CommandParser(
        "show",
        "Show a run: the settings that differ from the defaults, curves, evaluations, and its answers\n"
        "to the same problems before and after training.",
    )
    parser.add_run()
    parser.add_argument(
        "--samples", type=whole(0), default=3, metavar="N", help="number of sample problems (default: 3)"
    )
    arguments = parser.parse(argv)
    with files_explained():
        folder = find_run(arguments.runs_dir, arguments.run)
        print_document(standard_output(), run_document(folder, _default_settings(), arguments.samples))
    return 0


def _default_settings() -> Mapping[str, object] | str:
    """Return the default settings, or the reason why they cannot be composed."""
    try:
        # Importing Hydra and pydantic takes 0.5 s; only this part of the command needs them.
        from atrium.config.compose import compose

        return compose([]).model_dump(mode="json")
    except (ImportError, AtriumError) as error:
        return f"the defaults cannot be composed: {error}"
