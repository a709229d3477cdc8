"""A document as the files of a report: one HTML page, Markdown, and LaTeX for a paper."""

from __future__ import annotations

from pathlib import Path

from atrium.base.atomic import write_text
from atrium.document.document import Document

SUFFIXES = ("html", "md", "tex")


def write_report(document: Document, folder: Path, stem: str, cache: Path) -> list[Path]:
    """Write the document into `folder` as one file of each suffix; return their paths.

    `cache` is the folder for files used in drawing, such as fonts. Raises `OSError`.
    """
    from atrium.views.figures.style import use_cache  # numpy

    use_cache(cache)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}.{suffix}" for suffix in SUFFIXES]
    for path, suffix in zip(paths, SUFFIXES, strict=True):
        write_text(path, rendered(document, suffix))
    return paths


def rendered(document: Document, suffix: str) -> str:
    """Return the content of the file of this suffix."""
    if suffix == "html":
        from atrium.views.figures.sheet import svg  # numpy
        from atrium.views.html import html

        return html(document, svg)
    if suffix == "md":
        from atrium.views.markdown import markdown

        return markdown(document)
    from atrium.views.latex import latex

    return latex(document)
