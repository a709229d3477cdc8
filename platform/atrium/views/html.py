"""A document as one self-contained HTML page. No script, no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from atrium.document.document import Document, Figure, Section, Sentence, Table
from atrium.views.cells import texts
from atrium.views.latex import latex_table

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --dim: #5f6773; --paper: #ffffff; --card: #f6f7f9;
  --line: #dfe3e8; --accent: #0b6bb5; --better: #17794a; --worse: #b3381e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --dim: #9aa4b2; --paper: #14171c;
  --card: #1c2027; --line: #303742; --accent: #62b0ee;
  --better: #5cc78f; --worse: #f08a6c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 36px 24px 72px; }
h1 { font-size: 25px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 36px 0 10px; }
h3 { font-size: 15px; margin: 24px 0 8px; }
.sub { color: var(--dim); margin: 0 0 22px; overflow-wrap: anywhere; }
.verdict { background: var(--card); border-left: 4px solid var(--dim); border-radius: 6px;
  padding: 11px 16px; margin: 9px 0; overflow-wrap: anywhere; }
.verdict.better { border-color: var(--better); }
.verdict.worse, .verdict.warning { border-color: var(--worse); }
.verdict.muted { color: var(--dim); font-size: 13.5px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; width: 100%; }
th { text-align: right; color: var(--dim); font-weight: 500; vertical-align: bottom; }
td { text-align: right; white-space: nowrap; }
td.words { white-space: normal; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; font-weight: 600; }
td.words, th.words { text-align: left; min-width: 240px; }
td.text, th.text { text-align: left; }
svg { width: 100%; height: auto; background: var(--card); border-radius: 8px; }
svg text { fill: var(--ink); font-family: system-ui, sans-serif !important; }
.caption, .notes { color: var(--dim); font-size: 13.5px; } .notes { padding-left: 18px; }
blockquote { margin: 9px 0; padding: 2px 16px; border-left: 4px solid var(--accent); font-size: 16px; }
details { margin: 12px 0; } summary { cursor: pointer; color: var(--dim); font-size: 13.5px; }
pre { overflow-x: auto; background: var(--card); border-radius: 8px; padding: 12px 16px; font-size: 12.5px; }
@media print { main { max-width: none; padding: 0; } }
"""


def html(document: Document, draw: Callable[[Figure], str]) -> str:
    """The whole page; `draw` returns a figure as an `<svg>` element."""
    body = [
        f"<h1>{escape(document.title)}</h1>",
        f'<p class="sub">{escape(document.subtitle)}</p>',
        *map(_box, document.alerts),
        *map(_box, document.answer),
        *(part for section in document.sections for part in _section(section, draw)),
        *_notes(document.notes),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(document.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section, draw: Callable[[Figure], str]) -> list[str]:
    return [
        f"<h2>{escape(section.title)}</h2>",
        *(f"<blockquote>{escape(sentence.text)}</blockquote>" for sentence in section.sentences),
        *(part for figure in section.figures for part in _figure(figure, draw)),
        *map(_table, section.tables),
        *(f"<h3>{escape(one.title)}</h3><pre>{escape(one.text)}</pre>" for one in section.passages),
    ]


def _figure(figure: Figure, draw: Callable[[Figure], str]) -> list[str]:
    caption = f'<p class="caption">{escape(figure.caption)}</p>' if figure.caption else ""
    return [f"<h3>{escape(figure.title)}</h3>", draw(figure), caption]


def _table(table: Table) -> str:
    """The table; one for a paper is folded, as LaTeX to copy."""
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
    return f'<div class="verdict {sentence.tone}">{escape(sentence.text)}</div>'


def _notes(notes: Sequence[Sentence]) -> list[str]:
    items = "".join(f"<li>{escape(note.text)}</li>" for note in notes)
    return ["<h2>Notes</h2>", f'<ul class="notes">{items}</ul>'] if notes else []
