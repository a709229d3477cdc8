"""Documents of a paper's claims with stored results, and of a single claim with its designs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atrium.claim.definition import Claim, Computation, Scale, ScoreOutcome
from atrium.claim.files import COMPUTED, FOLDER, design_of, sweep_of
from atrium.document.document import Cell, Column, Document, Image, Row, Section, Sentence, Table, Value
from atrium.stats.wording import points

PAGE_TITLE = "Papers reproduced, claim by claim"
PAGE_INTRODUCTION = """\
- This page tests statements (claims) of papers on methods for reinforcement learning. Statements
  about formulas are checked by computation. Statements about training are tested with runs of a
  small model on a CPU (`laptop`) or of larger models on a GPU (`day`, and `paper` for the scale of
  the paper).
- Number of claims by scale and verdict: {verdicts}.
- Nothing was measured on a GPU.

**Contents:** {contents}

**Verdicts.** At the scale of the paper, a claim is *shown*, *contradicted* or *not distinguishable*.
On another model or task, or in a computation, the result *agrees* or *disagrees* with the claim, or
it *cannot tell*. *Not read* marks a claim whose statement was not available to us; its results are
from our own experiments. A claim counts as tested only if the power of its design is known and at
least 0.8.

`atrium claim reproduce` writes this page. The claims are files in `conf/claim/`. The JSON files in
`docs/reproductions/` contain the differences by seed.
"""
Results = Mapping[str, Mapping[str, Any]]
"""Stored results at one scale, by claim."""


def page_introduction(papers: Sequence[Document], stored: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the introduction of the results page in Markdown: summary, table of contents, and legend.

    `papers` are the documents of the papers on the page, and `stored` the stored results of each paper by
    scale.
    """
    links = [re.sub(r"[^\w\- ]", "", paper.title.lower()).replace(" ", "-") for paper in papers]
    names = [paper.title.partition(":")[0] for paper in papers]
    claims = [(scale, one.get("claims") or {}) for paper in stored for scale, one in paper.items()]
    counts = Counter((scale, one["word"]) for scale, found in claims for one in found.values())
    return PAGE_INTRODUCTION.format(
        verdicts=", ".join(f"{scale} *{word}* {num}" for (scale, word), num in counts.items()) or "none",
        contents=" · ".join(f"[{name}](#{link})" for name, link in zip(names, links, strict=True)),
    )


def claim_document(claim: Claim) -> Document:
    """Return the document of a claim: its statement, and its designs with their power."""
    designs = tuple(Sentence(f"{scale}: {power_words(claim, scale)}") for scale in claim.designs)
    title = f"{claim.title}: {claim.place} of arXiv {claim.arxiv}"
    section = replace(_section(claim, {}), title=title)
    return Document(key="claim", title=title, sections=(section, Section(title="Designs", sentences=designs)))


def power_words(claim: Claim, scale: Scale) -> str:
    """Describe a claim's design at a scale: its sweep, number of seeds, and power."""
    design, sweep = design_of(claim, scale), sweep_of(claim, scale)
    power = design.power(len(sweep.seeds))
    known = "unknown, so the design does not test the claim" if power is None else f"{power:.2f}"
    return (
        f"sweep {sweep.name}, {len(sweep.seeds)} seeds; power for a difference of {design.effect:g}: {known} "
        f"({design.source})"
    )


def paper_document(claims: Sequence[Claim], stored: Mapping[str, Mapping[str, Any]]) -> Document:
    """Return the document of a paper: verdicts, experiments, a section per claim, and provenance.

    `stored` contains the stored results by scale.
    """
    results: dict[str, Results] = {scale: one.get("claims") or {} for scale, one in stored.items()}
    made = {scale: one["about"].items() for scale, one in stored.items() if "about" in one}
    about = [f"{scale}: {', '.join(f'{key} {value}' for key, value in one)}" for scale, one in made.items()]
    tables = [_words(claims, results), _experiments(claims, results)]
    return Document(
        key="paper",
        title=f"{claims[0].paper}: https://arxiv.org/abs/{claims[0].arxiv}",
        alerts=tuple(alert for scale in made for alert in _by_chance(claims, scale, results[scale])),
        sections=(
            Section(title="Claims", tables=tuple(table for table in tables if table.rows)),
            *(_section(claim, results) for claim in claims),
            Section(title="Provenance", sentences=tuple(map(Sentence, about))),
        ),
    )


def _words(claims: Sequence[Claim], results: Mapping[str, Results]) -> Table:
    return Table(
        title="Verdict on each claim, by scale",
        columns=(Column("claim"), Column("place", is_prose=True), *map(Column, results)),
        rows=tuple(
            Row((claim.name, claim.place, *(_word(claim, scale, one) for scale, one in results.items())))
            for claim in claims
        ),
    )


def _word(claim: Claim, scale: str, results: Results) -> str:
    """Return the claim's verdict at a scale, or `not run` if no result is stored.

    Returns an empty string if the claim cannot be tested at this scale.
    """
    if claim.name in results:
        return str(results[claim.name]["word"])
    is_planned = isinstance(claim.outcome, Computation) if scale == COMPUTED else scale in claim.designs
    return "not run" if is_planned else ""


def _experiments(claims: Sequence[Claim], results: Mapping[str, Results]) -> Table:
    """Return a table of the results of completed experiments, each with the claims that it concerns.

    Claims for which all other columns are equal share a row. `results` contains the stored results by scale.
    """
    rows: dict[tuple[Cell, ...], list[str]] = {}
    for claim in claims:
        for scale, design in claim.designs.items():
            if claim.name in results[scale]:
                stored, outcome = results[scale][claim.name], claim.outcome.words
                is_score = isinstance(claim.outcome, ScoreOutcome)
                cells = (
                    design.sweep,
                    f"{claim.candidate} minus {claim.baseline}",
                    "Mean@K" if outcome.startswith("Mean@") else outcome,  # the design's K, not the paper's
                    points(design.effect) if is_score else f"{design.effect:g}",
                    Value(design.power(len(stored.get("seeds", ()))), "fraction"),
                    stored["why"].partition(";")[2 if "not read" in stored["word"] else 0].strip(),
                )
                rows.setdefault(cells, []).append(claim.name)
    titles = ("experiment", "difference", "outcome", "planned effect", "power", "result", "claims")
    columns = tuple(Column(title, is_prose=title in ("difference", "outcome", "claims")) for title in titles)
    return Table(
        title="Completed experiments",
        columns=columns,
        rows=tuple(Row((*cells, ", ".join(served))) for cells, served in rows.items()),
    )


def _by_chance(claims: Sequence[Claim], scale: str, results: Results) -> list[Sentence]:
    """Return a warning that states how many claims are expected to be decided by chance alone.

    Claims are tested separately, without a correction for their number. The result is empty if fewer than
    two claims about runs have an expected sign and a result at this scale.
    """
    num = sum(claim.name in results and claim.expected is not None for claim in claims if claim.designs)
    if num < 2:
        return []
    text = (
        f"{scale}: {num} claims with an expected sign are tested separately at the 5 % level, mostly on the "
        f"same runs; chance alone is expected to decide {0.05 * num:.2g} of them"
    )
    return [Sentence(text, "warning")]


def _section(claim: Claim, results: Mapping[str, Results]) -> Section:
    """Return a claim's section: statement, outcome, expectation, our own choices, and results by scale."""
    arms = "" if claim.candidate is None else f"difference: {claim.candidate} minus {claim.baseline}; "
    expected = "not read"
    if claim.expected is not None:
        at_most, size = claim.expected.at_most, claim.expected.size
        bound = claim.expected.sign if at_most is None else f"at most {at_most:g}"
        expected = f"{bound}{'' if size is None else f', {size:+g}'} ({claim.expected.source})"
    lines = [claim.statement, f"{arms}outcome: {claim.outcome.words}; expected: {expected}"]
    if claim.ours:
        lines.append(f"our choices: {'; '.join(claim.ours)}")
    found = {scale: one[claim.name] for scale, one in results.items() if claim.name in one}
    lines += [f"{scale}: {one['word']}; {one['why']}" for scale, one in found.items()]
    return Section(
        title=claim.name,
        sentences=tuple(map(Sentence, lines)),
        images=tuple(
            Image(title=f"{claim.place}, {scale}", file=f"{FOLDER}/{one['figure']}")
            for scale, one in found.items()
            if "figure" in one
        ),
    )
