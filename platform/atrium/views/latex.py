r"""A document for a paper: tables with a caption, then, after \endinput, all others for copying."""

from __future__ import annotations

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
        "\n": " ",
        "<": "$<$",
        ">": "$>$",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: "\\" + character for character in "&%$#_{}"},
    }
)


def latex(document: Document) -> str:
    r"""Return the tables with a caption, then, after \endinput, which ends \input, the others.

    Alerts, the answer, other sentences and notes are comments.
    """
    said = [sentence for section in document.sections for sentence in section.sentences]
    notes = [note for note in document.notes if note.tone != "muted"]
    lines = [one.text.replace("\n", " ") for one in (*document.alerts, *document.answer, *said, *notes)]
    tables = [table for section in document.sections for table in section.tables]
    captioned = [latex_table(table) for table in tables if table.caption]
    others = [latex_table(table) for table in tables if not table.caption]
    comments = "".join(f"% {line}\n" for line in ["Needs \\usepackage{booktabs}.", *lines])
    return "\n".join([comments + "\n".join(captioned), "\\endinput\n", *others])


def latex_table(table: Table) -> str:
    """Return the table for the package booktabs; one with a caption floats, and has a label from its key."""
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
    return " & ".join(cells) + r" \\"


def _cell(cell: Cell) -> str:
    """Return the cell; the interval of an estimate is small, and the best value is bold."""
    if not isinstance(cell, Estimate) or cell.value is None:
        return _text(cell_text(cell))
    value, *interval = estimate_parts(cell)
    value = _text(value)
    value = rf"\textbf{{{value}}}" if cell.is_strong else value
    return value + "".join(rf" {{\small {_text(one)}}}" for one in interval)


def _text(text: str) -> str:
    return text.translate(_ESCAPES)
