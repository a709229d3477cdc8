"""`docs/reproductions.md`: every claim with its words by scale and its figures, from stored results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atrium.base.atomic import explained, write_text
from atrium.base.recorded import read_object
from atrium.claim.definition import SCALES, Claim, Computation, ScoreOutcome
from atrium.claim.files import claims_of, papers
from atrium.compare.verdicts import points

FOLDER, PAGE = "reproductions", "reproductions.md"
COMPUTED = "computed"
_HEAD = """\
# Papers reproduced, claim by claim

`atrium claim reproduce` writes this page; the claims are files in `conf/claim/`. At the scale of the paper a
claim is *shown*, *contradicted* or *not distinguishable*. An analogue on another model or task, or a
computation, at most *agrees*, *disagrees* or *cannot tell*. *Not read* marks a statement whose text was not
available: the result beside it comes from an experiment of our own. A claim whose design lacks power, or
whose power is unknown, does not count as tested. The JSON files in `docs/reproductions/` hold the difference
of every seed. Nothing was measured on a GPU.
"""
Results = Mapping[str, Mapping[str, Any]]


def write_page(out: Path) -> Path:
    """Write the page into a folder; its path."""
    path = out / PAGE
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page(out))
    return path


def page(out: Path) -> str:
    """The page of all papers, from the results that lie below `out`."""
    return "\n".join([_HEAD, *(line for paper in papers() for line in _paper(paper, out))])


def _paper(paper: str, out: Path) -> list[str]:
    stored = {scale: read_object(out / FOLDER / f"{paper}-{scale}.json")[0] for scale in (COMPUTED, *SCALES)}
    results: dict[str, Results] = {scale: one.get("claims") or {} for scale, one in stored.items()}  # type: ignore[misc]
    claims = claims_of(paper)
    lines = [f"## {paper} ([arXiv {claims[0].arxiv}](https://arxiv.org/abs/{claims[0].arxiv}))", ""]
    for scale, one in stored.items():
        if isinstance(about := one.get("about"), dict):
            found = ", ".join(f"{name} {value}" for name, value in about.items())
            lines += [f"{scale}: {found}", "", *_by_chance(claims, results[scale])]
    lines += ["| claim | place | computed | laptop | day | paper |", "|---|---|---|---|---|---|"]
    for claim in claims:
        words = [_word(claim, scale, results[scale]) for scale in (COMPUTED, *SCALES)]
        lines.append(f"| {claim.name} | {claim.place} | {' | '.join(words)} |")
    lines += ["", *_experiments(claims, results)]
    return [*lines, *(line for claim in claims for line in _claim(claim, results))]


def _experiments(claims: Sequence[Claim], results: Mapping[str, Results]) -> list[str]:
    """One row per experiment that was run: its arms and outcome, its power, its result, the claims it serves.

    Claims that differ in their place in the paper alone share an experiment, and so its result.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for claim in claims:
        for scale, design in claim.designs.items():
            if claim.name in results[scale]:
                stored = results[scale][claim.name]
                power = design.power(len(stored.get("seeds", ())))
                is_score, outcome = isinstance(claim.outcome, ScoreOutcome), claim.outcome.words
                effect = points(design.effect) if is_score else f"{design.effect:g}"
                planned = f"{effect}, power {'not known' if power is None else f'{power:.2f}'}"
                if outcome.startswith("Mean@"):
                    outcome = "Mean@K"  # the same over all samples, whatever K the paper has
                arms = f"{claim.candidate} less {claim.baseline}"
                seen = stored["why"].partition(";")[2 if "not read" in stored["word"] else 0].strip()
                row = (f"`{design.sweep}`", arms, outcome, planned, seen)
                rows.setdefault(row, []).append(claim.name)
    if not rows:
        return []
    return [
        "| experiment | arms | outcome | smallest effect planned for | result | claims |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} | {', '.join(served)} |" for row, served in rows.items()),
        "",
    ]


def _by_chance(claims: Sequence[Claim], results: Results) -> list[str]:
    """How many words chance alone would give: claims are judged one by one, and share runs."""
    num = sum(claim.name in results and claim.expected is not None for claim in claims if claim.designs)
    if num < 2:
        return []
    return [
        f"{num} claims with an expected sign are judged one by one, at 5 %, on runs that most of them share: "
        f"chance alone is expected to speak for or against {0.05 * num:.2g} of them.",
        "",
    ]


def _word(claim: Claim, scale: str, results: Results) -> str:
    """The word at a scale; empty where the claim has no design for it."""
    if claim.name in results:
        return str(results[claim.name]["word"])
    is_planned = isinstance(claim.outcome, Computation) if scale == COMPUTED else scale in claim.designs
    return "not run" if is_planned else ""


def _claim(claim: Claim, results: Mapping[str, Results]) -> list[str]:
    """A section, where there is something to tell."""
    found = {scale: one[claim.name] for scale, one in results.items() if claim.name in one}
    lines = [f"### {claim.name}", "", claim.statement, "", f"Outcome: {claim.outcome.words}."]
    if claim.expected is not None:
        lines[-1] += f" Source: {claim.expected.source}."
    if claim.ours:
        lines[-1] += f" Our choice: {'; '.join(claim.ours)}."
    lines.append("")
    for scale, one in found.items():
        lines += [f"**{one['word']}** ({scale}): {one['why']}.", ""]
        if "figure" in one:
            lines += [f"![{claim.place}, {scale}]({FOLDER}/{one['figure']})", ""]
    return lines
