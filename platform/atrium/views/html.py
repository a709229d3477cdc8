"""HTML view of a document: one self-contained page, without scripts or network access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from atrium.document.document import Document, Figure, Section, Sentence, Table
from atrium.views.cells import texts
from atrium.views.latex import latex_table

_STYLE = Path(__file__).with_name("page.css")
_MOST_OPEN = 6
_FEW_VERDICTS = 2


def html(document: Document, draw: Callable[[Figure], str]) -> str:
    """Return the HTML page of a document; `draw` returns a figure as an `<svg>` element."""
    style = _STYLE.read_text(encoding="utf-8")
    open_first = sorted(document.sections, key=lambda section: section.is_folded)
    body = [
        f"<h1>{escape(document.title)}</h1>",
        f'<p class="sub">{escape(document.subtitle)}</p>',
        *map(_box, document.alerts),
        *_answer(document.answer),
        *(part for section in open_first for part in _section(section, draw)),
        *_notes(document.notes),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _answer(answer: Sequence[Sentence]) -> list[str]:
    """Return a document's answer as HTML parts.

    If the answer has a headline, more than two verdicts are put into a foldable block below it. The block
    is closed if there are more than six verdicts.
    """
    verdicts = [one for one in answer if one.key.startswith("verdict/")]
    if len(verdicts) <= _FEW_VERDICTS or not any(one.key == "headline" for one in answer):
        return [*map(_box, answer)]
    others = [_box(one) for one in answer if one not in verdicts]
    boxes = "".join(map(_box, verdicts))
    opened = " open" if len(verdicts) <= _MOST_OPEN else ""
    folded = f"<details{opened}><summary>{len(verdicts)} verdicts</summary>{boxes}</details>"
    return [others[0], folded, *others[1:]]


def _section(section: Section, draw: Callable[[Figure], str]) -> list[str]:
    title = f"<h2>{escape(section.title)}</h2>"
    if section.is_folded:
        return [f"<details><summary>{title}</summary>", *_parts(section, draw), "</details>"]
    return [title, *_parts(section, draw)]


def _parts(section: Section, draw: Callable[[Figure], str]) -> list[str]:
    return [
        *(f"<blockquote>{escape(sentence.text)}</blockquote>" for sentence in section.sentences),
        *(part for figure in section.figures for part in _figure(figure, draw)),
        *map(_table, section.tables),
        *(f"<h3>{escape(one.title)}</h3><pre>{escape(one.text)}</pre>" for one in section.passages),
    ]


def _figure(figure: Figure, draw: Callable[[Figure], str]) -> list[str]:
    caption = f'<p class="caption">{escape(figure.caption)}</p>' if figure.caption else ""
    return [f"<h3>{escape(figure.title)}</h3>", draw(figure), caption]


def _table(table: Table) -> str:
    """Return the table as HTML.

    A table with a caption is meant for a paper and becomes folded LaTeX source.
    """
    if table.caption:
        text = escape(latex_table(table))
        return f"<details><summary>The table in LaTeX</summary><pre>{text}</pre></details>"
    words = [
        ' class="words"' if column.is_prose else ' class="text"' if column.is_text else ""
        for column in table.columns
    ]

    def row(cells: Sequence[str], tag: str) -> str:
        inner = (f"<{tag}{name}>{escape(cell)}</{tag}>" for name, cell in zip(words, cells, strict=True))
        return f"<tr>{''.join(inner)}</tr>"

    head = row([column.title for column in table.columns], "th")
    rows = "".join(row(cells, "td") for cells in texts(table.rows))
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h3>{escape(table.title)}</h3>\n<div class="wide"><table><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _box(sentence: Sentence) -> str:
    text = escape(sentence.text)
    if sentence.detail:
        text = f"<details><summary>{text}</summary>{escape(sentence.detail)}</details>"
    return f'<div class="verdict {sentence.tone}">{text}</div>'


def _notes(notes: Sequence[Sentence]) -> list[str]:
    items = "".join(f"<li>{escape(note.text)}</li>" for note in notes)
    return ["<h2>Notes</h2>", f'<ul class="notes">{items}</ul>'] if notes else []
