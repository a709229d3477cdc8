"""A claim and the power of its designs in lines."""

from __future__ import annotations

from atrium.claim.definition import Claim, Computation, Scale
from atrium.claim.files import design_of, sweep_of


def claim_lines(claim: Claim) -> list[str]:
    """A claim in lines: statement, arms, outcome, expectation, and each design with its power."""
    expected = claim.expected
    lines = [f"{claim.title}: {claim.place} of arXiv {claim.arxiv}", claim.statement]
    if not isinstance(claim.outcome, Computation):
        lines.append(f"arms: {claim.candidate} less {claim.baseline}")
    lines.append(f"outcome: {claim.outcome.words}")
    if expected is None:
        lines.append("expected: not read")
    else:
        bound = f"at most {expected.at_most:g}" if expected.at_most is not None else expected.sign
        size = f", {expected.size:+g}" if expected.size is not None else ""
        lines.append(f"expected: {bound}{size} ({expected.source})")
    lines += [f"our choice: {one}" for one in claim.ours]
    for scale in claim.designs:
        lines.append(f"{scale}: {power_words(claim, scale)}")
    return lines


def power_words(claim: Claim, scale: Scale) -> str:
    """A design's sweep, seeds and power."""
    design, sweep = design_of(claim, scale), sweep_of(claim, scale)
    power = design.power(len(sweep.seeds))
    known = "not known, so that it does not test the claim" if power is None else f"{power:.2f}"
    return (
        f"sweep {sweep.name}, {len(sweep.seeds)} seeds; power for a difference of {design.effect:g}: {known} "
        f"({design.source})"
    )
