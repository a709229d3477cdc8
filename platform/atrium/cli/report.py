"""`atrium report`: a comparison as HTML, LaTeX and Markdown files, and sentences for a paper."""

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
    """Write a report on runs and print sentences for a paper; return 0, or raise `AtriumError`."""
    parser = comparison_parser(
        "report",
        "Write a comparison as an HTML file with figures, a LaTeX table with caption and label, and\n"
        "Markdown, and print sentences for a paper that claim no more than the intervals support.",
    )
    parser.add_argument(
        "--picture", metavar="FILE", help="also write all figures as one picture (.png, .svg or .pdf)"
    )
    arguments = parser.parse(argv)
    path = Path(arguments.picture) if arguments.picture else None
    if path is not None and path.suffix not in _PICTURES:
        raise ConfigError(f"--picture {path}: the file name must end in {' or '.join(_PICTURES)}")
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
