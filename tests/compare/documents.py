"""A comparison's document as tests read it: lines, tables of text, files."""

from __future__ import annotations

from atrium.compare.document import comparison_document
from atrium.compare.training_document import read_training
from atrium.views.cells import texts
from atrium.views.files import SUFFIXES, rendered


def document_of(comparison, **more):
    arms = [one.arm for one in comparison.arms]
    training = read_training(arms, has_intervals=not comparison.planned.is_early)
    return comparison_document(comparison, training, **more)


def answer_of(comparison):
    """The sentences of the answer."""
    return [sentence.text for sentence in document_of(comparison).answer]


def alerts_of(comparison):
    """The texts and details of the alerts."""
    return [(alert.text, alert.detail) for alert in document_of(comparison).alerts]


def notes_of(comparison):
    """The notes about these runs."""
    return [note.text for note in document_of(comparison).notes if note.tone == "warning"]


def tables_of(comparison):
    """The rows of text by the titles of the tables."""
    sections = document_of(comparison).sections
    return {table.title: texts(table.rows) for section in sections for table in section.tables}


def files_of(comparison, **more):
    """The contents of the files of a report by suffix."""
    document = document_of(comparison, **more)
    return {suffix: rendered(document, suffix) for suffix in SUFFIXES}


def results_latex(comparison):
    """The table for a paper."""
    return files_of(comparison)["tex"].partition("\\endinput")[0].partition("\\begin{table}")[2]
