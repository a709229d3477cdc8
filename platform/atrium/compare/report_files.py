"""A comparison as the files of a report: one HTML page, Markdown, and LaTeX for a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atrium.compare.figures.paper import drawing
from atrium.compare.report_markup import document_latex, document_markdown
from atrium.compare.report_page import html_page
from atrium.compare.report_tables import ReportTable, report_tables
from atrium.compare.report_training import read_training
from atrium.compare.run_comparison import RunsComparison

_MAX_NAME = 60


def report_files(
    comparison: RunsComparison, *, made: str, more: Sequence[ReportTable] = (), said: Sequence[str] = ()
) -> dict[str, str]:
    """The contents by suffix (`html`, `md`, `tex`).

    `made` says where and when; `more` are tables that were asked for, `said` sentences about claims.
    """
    arms = [one.arm for one in comparison.arms]
    training = read_training(arms, has_intervals=not comparison.planned.is_early)
    tables = (*report_tables(comparison), *more)
    with drawing:
        page = html_page(comparison, tables, made=made, training=training, said=said)
    tables = (*tables, *training.tables)
    return {
        "html": page,
        "md": document_markdown(comparison, tables, said),
        "tex": document_latex(comparison, tables, said),
    }


def report_name(comparison: RunsComparison) -> str:
    """A name for the files that the file system and a browser take."""
    text = "-vs-".join(one.arm.name for one in comparison.arms)
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.")[:_MAX_NAME] or "comparison"
