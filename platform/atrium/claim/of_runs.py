"""Verdicts on the claims that an experiment's sweep tests, based on the experiment's runs."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.base.errors import ConfigError
from atrium.claim.definition import Claim, Computation, Scale
from atrium.claim.evidence import arm_runs, design, evidence_of_runs
from atrium.claim.files import claims_of, design_of, papers
from atrium.runs.run_folder import RunFolder


def claims_said(folders: Sequence[RunFolder]) -> list[str]:
    """Return sentences with the verdicts on the shipped claims that the runs in `folders` test.

    Runs test a claim if their experiment has the same name as the sweep of one of the claim's designs. If a
    required run is missing, or if a run does not match the sweep, the sentence gives this reason instead of a
    verdict.
    """
    experiments = {folder.name.partition("/")[0] for folder in folders}
    return [
        f'{claim.title}, {claim.place} of arXiv {claim.arxiv}, "{claim.statement}" '
        + _word(claim, scale, folders)
        for paper in papers()
        for claim in claims_of(paper)
        if not isinstance(claim.outcome, Computation)
        for scale in claim.designs
        if design_of(claim, scale).sweep in experiments
    ]


def _word(claim: Claim, scale: Scale, folders: Sequence[RunFolder]) -> str:
    wanted = design(claim, scale)
    try:
        evidence = evidence_of_runs(wanted, arm_runs(wanted.sweep, folders))
    except ConfigError as error:
        return f"scale={scale}: no verdict; {error}"
    judged = wanted.judge(evidence)
    return f"scale={scale}: {judged.word}; {judged.why}"
