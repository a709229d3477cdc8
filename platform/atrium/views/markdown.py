"""GitHub-flavored Markdown view of a document."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.document.document import Document, Section, Sentence, Table
from atrium.views.cells import number_columns, texts

_ESCAPES = str.maketrans({"\\": "\\\\", "|": "\\|", "*": "\\*", "<": "&lt;", "\n": " "})


def markdown(document: Document) -> str:
    """Return a document as Markdown: alerts, answer, sections with tables and images, and notes.

    All figures, and the tables that have a caption, are left out.
    """
    parts = [f"## {_text(document.title)}\n"]
    parts += [_list(sentences) for sentences in (document.alerts, document.answer) if sentences]
    parts += [text for section in document.sections if (text := _section(section))]
    parts += [_list(document.notes)] if document.notes else []
    return "\n".join(parts)


def markdown_table(table: Table) -> str:
    """Return a table as Markdown, under its title."""
    lines = [
        f"**{_text(table.title)}**",
        "",
        _row([column.title for column in table.columns]),
        "|" + "".join(" ---: |" if is_number else " --- |" for is_number in number_columns(table)),
        *map(_row, texts(table.rows)),
        *(["", _text(table.note)] if table.note else []),
    ]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> str:
    """Return a section as Markdown: its title, sentences, tables, passages and images.

    Figures, and the tables that have a caption, are left out. Returns an empty string if only the title is
    left.
    """
    parts = [f"> {_text(sentence.text)}\n" for sentence in section.sentences]
    parts += [markdown_table(table) for table in section.tables if not table.caption]
    parts += [f"{_text(one.title)}\n\n{_fenced(one.text)}" for one in section.passages]
    parts += [f"![{_text(one.title)}]({one.file})\n" for one in section.images]
    return "\n".join([f"### {_text(section.title)}\n", *parts]) if parts else ""


def _fenced(text: str) -> str:
    """Return the text as a code block. Its fence is longer than any fence in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}\n"


def _list(sentences: Sequence[Sentence]) -> str:
    lines = [(one.text, one.detail) for one in sentences]
    return "".join(f"- {_text(text)}\n" + f"  - {_text(more)}\n" * bool(more) for text, more in lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_text, cells)) + " |"


def _text(text: str) -> str:
    return text.translate(_ESCAPES)
