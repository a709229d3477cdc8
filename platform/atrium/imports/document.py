"""The document printed by `atrium import`: the runs that were written, or that a dry run would write."""

from __future__ import annotations

from atrium.document.document import Column, Document, Row, Section, Sentence, Table, Value
from atrium.document.formatting import counted, value_text
from atrium.imports.importing import Imported, PlannedRun

_COLUMNS = (
    Column("method", is_text=True),
    Column("seed"),
    Column("benchmark", is_text=True),
    Column("step"),
    Column("problems"),
    Column("samples"),
    Column("Mean@K, %"),
    Column("in the source, %"),
)
_TOLERANCE = 5e-4
"""Largest difference of means (as shares) attributed to rounding in the source."""
_MOST_ROWS = 40


def import_document(found: Imported, experiment: str, *, is_dry: bool) -> Document:
    """Return the document of an import, with Mean@K next to the mean reported by the source."""
    if found.known:
        names = ", ".join(found.known)
        said = f"{experiment} already contains these files, as {names}; nothing was written"
        return Document(key="import", title="Import", answer=(Sentence(said),))
    rows = [row for run in found.runs for row in _rows(run)]
    hidden = f"and {len(rows) - _MOST_ROWS} more" if len(rows) > _MOST_ROWS else ""
    table = Table(title="", columns=_COLUMNS, rows=tuple(rows[:_MOST_ROWS]), note=hidden)
    runs = counted(len(found.runs), "run")
    said = f"{runs} would be written into {experiment}" if is_dry else f"{runs} written into {experiment}"
    return Document(
        key="import",
        title="Import",
        answer=(Sentence(said),),
        sections=(Section(title="Runs", tables=(table,)),),
        notes=tuple(Sentence(line, "warning") for line in _notes(found)),
    )


def _rows(run: PlannedRun) -> list[Row]:
    seed = str(run.seed) if run.is_seed_stated else f"{run.seed} (not stated)"
    rows = [
        Row(
            (
                run.method,
                seed,
                part.benchmark,
                part.part.step,
                len(part.num_correct_P),
                part.num_samples,
                Value(part.mean_at_k, "share"),
                None if part.printed is None else Value(part.printed, "share"),
            )
        )
        for part in run.parts
    ]
    if run.curve is not None and not rows:
        rows.append(Row((run.method, seed, "curves only", max(run.curve.steps), None, None, None, None)))
    return rows


def _notes(found: Imported) -> list[str]:
    notes = []
    if any(not run.is_seed_stated for run in found.runs):
        notes.append("missing seeds are numbered; docs/import.md says which files count as one seed")
    parts = [part for run in found.runs for part in run.parts]
    for benchmark in dict.fromkeys(part.benchmark for part in parts):
        nums = [len(part.num_correct_P) for part in parts if part.benchmark == benchmark]
        if min(nums) < max(nums):
            problems = f"{benchmark}: runs have {min(nums)} to {max(nums)} problems"
            notes.append(f"{problems}; a comparison uses the problems that all of its runs have")
    for run in found.runs:
        for part in run.parts:
            if part.most_samples is not None:
                notes.append(
                    f"{run.method} on {part.benchmark}: problems have {part.num_samples} to "
                    f"{part.most_samples} answers; the first {part.num_samples} of each are kept"
                )
            if part.printed is not None and abs(part.printed - part.mean_at_k) > _TOLERANCE:
                ours, theirs = (value_text(value, "share") for value in (part.mean_at_k, part.printed))
                notes.append(
                    f"{run.method} on {part.benchmark}: Mean@{part.num_samples} is {ours} %, but the source "
                    f"reports {theirs} %"
                )
    return list(dict.fromkeys([*notes, *(line for source in found.sources for line in source.differences)]))
