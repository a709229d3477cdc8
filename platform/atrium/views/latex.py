"""LaTeX view of a document, for use in a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atrium.document.document import Cell, Document, Estimate, Table
from atrium.views.cells import cell_text, estimate_parts, number_columns

_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "–": "--",
        "−": "$-$",
        "·": r"$\cdot$",
        "∞": r"$\infty$",
        "×": r"$\times$",
        "±": r"$\pm$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "…": r"\ldots{}",
        "’": "'",
        "\n": " ",
        "<": "$<$",
        ">": "$>$",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: "\\" + character for character in "&%$#_{}"},
    }
)


def latex(document: Document) -> str:
    r"""Return a LaTeX file with the tables that have a caption. Sentences and notes become comments.

    Tables without a caption follow after \endinput, where \input ignores them, so that they can be copied.
    """
    said = [sentence for section in document.sections for sentence in section.sentences]
    notes = [note for note in document.notes if note.tone != "muted"]
    spoken = (*document.alerts, *document.answer, *said, *notes)
    lines = [text.replace("\n", " ") for one in spoken for text in (one.text, one.detail) if text]
    tables = [table for section in document.sections for table in section.tables]
    captioned = [latex_table(table) for table in tables if table.caption]
    others = [latex_table(table) for table in tables if not table.caption]
    comments = "".join(f"% {line}\n" for line in ["Needs \\usepackage{booktabs}.", *lines])
    return "\n".join([comments + "\n".join(captioned), "\\endinput\n", *others])


def latex_table(table: Table) -> str:
    """Return a table in LaTeX, which requires the package booktabs.

    A table with a caption becomes a float with a label.
    """
    align = "".join("r" if is_number else "l" for is_number in number_columns(table))
    lines = [
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _row([_text(column.title) for column in table.columns]),
        r"\midrule",
        *(_row([_cell(cell) for cell in row.cells]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if not table.caption:
        return "\n".join([f"% {table.title}".replace("\n", " "), *lines]) + "\n"
    caption = [rf"\caption{{{_text(table.caption)}}}", rf"\label{{tab:{table.key}}}"]
    return "\n".join([r"\begin{table}[t]", r"\centering", *caption, *lines, r"\end{table}"]) + "\n"


def _row(cells: Sequence[str]) -> str:
    # LaTeX would read a bracket at the start of a row as an argument of the preceding line break.
    return ("{}" if cells[0].startswith("[") else "") + " & ".join(cells) + r" \\"


def _cell(cell: Cell) -> str:
    """Return a cell in LaTeX: intervals in small type, and the values of strong estimates in bold."""
    if not isinstance(cell, Estimate) or cell.value is None:
        return _text(cell_text(cell))
    value, *interval = estimate_parts(cell)
    value = _text(value)
    value = rf"\textbf{{{value}}}" if cell.is_strong else value
    return value + "".join(rf" {{\small {_text(one)}}}" for one in interval)


def _text(text: str) -> str:
    """Return the text escaped for LaTeX.

    Control characters, and characters outside Latin-1, become question marks if they have no escape.
    """
    return re.sub(r"[^\x20-\xff]", "?", text.translate(_ESCAPES))
