"""`atrium report`: a comparison to send, and what may be written of it in a paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.base.errors import ConfigError
from atrium.cli.compare import show_comparison
from atrium.cli.comparison import comparison_parser
from atrium.cli.parser import files_explained
from atrium.views.terminal import standard_output

if TYPE_CHECKING:
    from atrium.views.figures.style import FileKind

_PICTURES: Mapping[str, FileKind] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}


def main(argv: list[str]) -> int:
    """Write a report on runs, and print what may be written of them; 0 unless they cannot be compared."""
    parser = comparison_parser(
        "report",
        "Write a comparison as one HTML file to send, with figures, as a LaTeX table with caption and label\n"
        "and as Markdown, and print the sentences that may be written in a paper.",
    )
    parser.add_argument("--picture", metavar="FILE", help="also one picture of it all, as .png, .svg or .pdf")
    arguments = parser.parse(argv)
    path = Path(arguments.picture) if arguments.picture else None
    if path is not None and path.suffix not in _PICTURES:
        raise ConfigError(f"--picture {path}: its ending is {', '.join(_PICTURES)}")
    comparison, training = show_comparison(arguments, is_report=True)
    if path is None:
        return 0
    from atrium.base.atomic import replacing
    from atrium.compare.document_figures import picture
    from atrium.views.figures.sheet import COLUMN_INCHES, file
    from atrium.views.figures.style import use_cache

    with files_explained():
        use_cache(Path(arguments.runs_dir) / ".cache")
        title, figures = picture(comparison, training.rewards)
        with replacing(path) as temporary:
            temporary.write_bytes(file(figures, _PICTURES[path.suffix], inches=COLUMN_INCHES[2], title=title))
    standard_output().print(f"  {path}", soft_wrap=True)
    return 0
