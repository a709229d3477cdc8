"""A comparison's tables as Markdown and LaTeX, escaped for each."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.compare.report_tables import READING, ReportTable, note_lines, verdict_lines
from atrium.compare.run_comparison import RunsComparison


def document_markdown(comparison: RunsComparison, tables: Sequence[ReportTable]) -> str:
    """The whole report in Markdown: verdicts, tables, notes."""
    parts = ["## Comparison\n", *(f"- {_markdown_text(line)}" for line in verdict_lines(comparison)), ""]
    parts += [markdown(table) for table in tables]
    parts += [f"- {_markdown_text(line)}" for line in (*note_lines(comparison), *READING)]
    return "\n".join(parts) + "\n"


def document_latex(comparison: RunsComparison, tables: Sequence[ReportTable]) -> str:
    """All tables in LaTeX, to be included in a paper, with verdicts and notes as comments."""
    comments = [*verdict_lines(comparison), *note_lines(comparison)]
    head = "".join(f"% {line}\n" for line in ["Needs \\usepackage{booktabs}.", *comments])
    return head + "\n" + "\n".join(latex(table) for table in tables)


def markdown(table: ReportTable) -> str:
    """The table in GitHub's Markdown, under its title."""
    lines = [
        f"**{_markdown_text(table.title)}**",
        "",
        "| " + " | ".join(map(_markdown_text, table.columns)) + " |",
        "|" + " --- |" + " ---: |" * (len(table.columns) - 1),
        *("| " + " | ".join(map(_markdown_text, row)) + " |" for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def latex(table: ReportTable) -> str:
    """The table as LaTeX with the package booktabs."""
    lines = [
        f"% {table.title}",
        r"\begin{tabular}{l" + "r" * (len(table.columns) - 1) + "}",
        r"\toprule",
        " & ".join(map(_latex_text, table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex_text, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _markdown_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


_LATEX = {
    "\\": r"\textbackslash{}",
    "–": "--",
    "·": r"$\cdot$",
    "<": "$<$",
    ">": "$>$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
