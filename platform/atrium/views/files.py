"""Report files of a document: an HTML page, Markdown, and LaTeX for a paper."""

from __future__ import annotations

from pathlib import Path

from atrium.base.atomic import write_text
from atrium.document.document import Document

SUFFIXES = ("html", "md", "tex")


def write_report(document: Document, folder: Path, stem: str, cache: Path) -> list[Path]:
    """Write the document to `folder` as HTML, Markdown and LaTeX files named `stem`; return their paths.

    `cache` is the parent folder of matplotlib's cache. Raises `OSError` if a file cannot be written.
    """
    from atrium.views.figures.style import use_cache  # numpy

    use_cache(cache)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}.{suffix}" for suffix in SUFFIXES]
    for path, suffix in zip(paths, SUFFIXES, strict=True):
        write_text(path, rendered(document, suffix))
    return paths


def rendered(document: Document, suffix: str) -> str:
    """Return the document as HTML, Markdown or LaTeX, for the suffix `html`, `md` or `tex`."""
    if suffix == "html":
        from atrium.views.figures.sheet import svg  # numpy
        from atrium.views.html import html

        return html(document, svg)
    if suffix == "md":
        from atrium.views.markdown import markdown

        return markdown(document)
    from atrium.views.latex import latex

    return latex(document)
