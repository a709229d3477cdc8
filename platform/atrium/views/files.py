"""A document as the files of a report: one HTML page, Markdown, and LaTeX for a paper."""

from __future__ import annotations

from atrium.document.document import Document

SUFFIXES = ("html", "md", "tex")


def rendered(document: Document, suffix: str) -> str:
    """The content of the file of this suffix."""
    if suffix == "html":
        from atrium.views.figures.sheet import svg  # numpy
        from atrium.views.html import html

        return html(document, svg)
    if suffix == "md":
        from atrium.views.markdown import markdown

        return markdown(document)
    from atrium.views.latex import latex

    return latex(document)
