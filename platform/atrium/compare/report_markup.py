"""A comparison's tables as Markdown and LaTeX, escaped for each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atrium.compare.arm_pairs import MACRO, MEAN
from atrium.compare.paper_sentences import family_words, paper_sentences
from atrium.compare.report_tables import (
    ReportTable,
    headline_pair,
    interval_text,
    note_lines,
    plan_line,
    reading_lines,
    top_lines,
    verdict_lines,
)
from atrium.compare.run_comparison import MEASURES, RunsComparison
from atrium.compare.verdicts import signed
from atrium.document.formatting import counted

_MOST_SAID = 2
"""Candidates about which a caption holds sentences; of more they would be a page."""


def document_markdown(
    comparison: RunsComparison, tables: Sequence[ReportTable], said: Sequence[str] = ()
) -> str:
    """The whole report in Markdown: verdicts, the sentences that may be written, tables, notes."""
    parts = ["## Comparison\n", *(f"- {_markdown_text(line)}" for line in top_lines(comparison)), ""]
    parts += [*(f"- {_markdown_text(line)}" for line in verdict_lines(comparison)), ""]
    parts += ["May be written:\n", *(f"> {_markdown_text(line)}\n" for line in paper_sentences(comparison))]
    parts += [f"- {_markdown_text(line)}" for line in said]
    parts += [markdown(table) for table in tables]
    parts += [f"- {_markdown_text(line)}" for line in (*note_lines(comparison), *reading_lines(comparison))]
    return "\n".join(parts) + "\n"


def document_latex(
    comparison: RunsComparison, tables: Sequence[ReportTable], said: Sequence[str] = ()
) -> str:
    r"""The table for a paper, and below \endinput, where \input stops, all others to copy from.

    Sentences, `said` among them, and notes are comments.
    """
    sentences = [*paper_sentences(comparison), *said, plan_line(comparison), *note_lines(comparison)]
    lines = ["Needs \\usepackage{booktabs}.", *top_lines(comparison), *sentences]
    comments = "".join(f"% {line}\n" for line in lines if line)
    return "\n".join(
        [comments + results_latex(comparison), "\\endinput\n", *(latex(table) for table in tables)]
    )


def results_latex(comparison: RunsComparison) -> str:
    """The arms' scores and differences as a table environment; bold is the arm shown to be the best."""
    names = [(m, b) for b in _benchmarks(comparison) for m in MEASURES if m == MEAN or comparison.k > 1]
    columns = [[100.0 * arm.scores[m][b].value for arm in comparison.arms] for m, b in names]
    rows = []
    for place, arm in enumerate(comparison.arms):
        cells = [_latex_text(arm.arm.name), str(len(arm.arm.runs))]
        for (measure, benchmark), column in zip(names, columns, strict=True):
            known = arm.scores[measure][benchmark].another_exam
            value = f"{column[place]:.1f}"
            span = f" {{\\small {interval_text(known.interval, is_signed=False)}}}" if known else ""
            is_best = comparison.best[measure, benchmark] == arm.arm.name
            cells.append((f"\\textbf{{{value}}}" if is_best else value) + span)
        rows.append(" & ".join([*cells, _difference_latex(comparison, place)]) + r" \\")
    baseline = _latex_text(comparison.arms[0].arm.name)
    many = len(_benchmarks(comparison)) > 1
    heads = [_latex_text(f"{comparison.title(m)}, {b}" if many else comparison.title(m)) for m, b in names]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_caption(comparison)}}}",
            rf"\label{{{label_of(comparison)}}}",
            r"\begin{tabular}{lr" + "l" * (len(names) + 1) + "}",
            r"\toprule",
            " & ".join(["method", "seeds", *heads, f"against {baseline}"]) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def label_of(comparison: RunsComparison) -> str:
    """The label by which a paper refers to the table."""
    text = "-vs-".join(arm.arm.name for arm in comparison.arms)
    return "tab:" + (re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "comparison")


def _caption(comparison: RunsComparison) -> str:
    """What the table shows; with one or two candidates also what may be written of them."""
    title, problems = comparison.title(MEAN), sum(comparison.num_problems.values())
    pairs = [headline_pair(comparison, arm) for arm in comparison.arms[1:]]
    together = family_words(pairs[0])
    intervals = ", with 95 % intervals for new seeds and new problems" if comparison.has_intervals else ""
    text = (
        f"{title} in percent on {' and '.join(comparison.benchmarks)} ({counted(problems, 'problem')})"
        f"{intervals}; differences are in points of {title}"
        + (f", their intervals hold {together}" if together and intervals else "")
        + (". Bold: shown to be the best of its column" if any(comparison.best.values()) else "")
        + "."
    )
    said = paper_sentences(comparison) if len(pairs) <= _MOST_SAID else []
    return _latex_text(" ".join([text, *said]))


def _difference_latex(comparison: RunsComparison, place: int) -> str:
    if place == 0:
        return "--"
    pair = headline_pair(comparison, comparison.arms[place])
    difference = pair.comparison.difference
    known = pair.another_exam
    interval = f"[{signed(known.low)}, {signed(known.high)}]" if known else ""
    beside = f"{interval} {pair.design}".strip()
    return f"${signed(difference.value)}$ {{\\small {_latex_text(beside)}}}"


def _benchmarks(comparison: RunsComparison) -> list[str]:
    return [*comparison.benchmarks, *([MACRO] if len(comparison.benchmarks) > 1 else [])]


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
