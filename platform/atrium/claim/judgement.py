"""Verdicts on claims, from data at the paper's scale or from an analog with another model, size or task.

An analog can only agree or disagree with a claim; showing or contradicting it requires the paper's scale.
If the power of a design for the planned effect is below 0.8 or unknown, the design does not test the
claim, regardless of its data.

Axes: S seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atrium.claim.definition import Expectation, Scale
from atrium.document.formatting import counted
from atrium.stats.estimates import Interval
from atrium.stats.wording import points, rounded_up, ruled_out

Finding = Literal["for", "against", "open", "not_run", "not_read"]
_PAPER: Mapping[Finding, str] = {
    "for": "shown",
    "against": "contradicted",
    "open": "not distinguishable",
    "not_run": "not run",
    "not_read": "not read",
}
_ANALOGUE: Mapping[Finding, str] = {
    **_PAPER,
    "for": "agrees",
    "against": "disagrees",
    "open": "cannot tell",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The candidate's outcome minus the baseline's over S seeds, with its 95 % interval if there is one."""

    difference: float
    difference_S: tuple[float, ...]
    interval: Interval | None
    is_share: bool
    """Whether the outcome is a share, shown in percentage points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on a claim as a category (`finding`) and in words (`word`), and its reason (`why`)."""

    finding: Finding
    word: str
    why: str


def judge(
    expected: Expectation | None, evidence: Evidence | None, *, scale: Scale, is_powered: bool
) -> Judgement:
    """Return the verdict on a claim about runs.

    `expected` is None if the paper's statement was not available. `evidence` is None if there are no runs.
    `is_powered` says whether the design's power is at least 0.8; if it is not, the claim remains open. An
    interval counts against the claim if it excludes the claimed size, or if it excludes 0 and its sign is not
    the claimed sign.
    """
    finding, why = _found(expected, evidence, is_powered)
    return Judgement(finding=finding, word=(_PAPER if scale == "paper" else _ANALOGUE)[finding], why=why)


def judge_error(expected: Expectation | None, error: float) -> Judgement:
    """Return the verdict on a computation: `agrees` if the error is within the bound, else `disagrees`.

    The verdict is never `shown`, since a numerical check does not prove a theorem. Without an expected
    bound, it is `not read`.
    """
    if expected is None or expected.at_most is None:
        return Judgement(finding="not_read", word=_ANALOGUE["not_read"], why=_NOT_READ)
    finding: Finding = "for" if error <= expected.at_most else "against"
    why = f"the largest error is {error:.1e}, with a bound of {expected.at_most:.0e}"
    return Judgement(finding=finding, word=_ANALOGUE[finding], why=why)


_NOT_READ = "the statement was not available, so this is our own experiment"


def _found(expected: Expectation | None, evidence: Evidence | None, is_powered: bool) -> tuple[Finding, str]:
    if evidence is None:
        return "not_run", "the design has no runs"
    seen = _seen(evidence)
    if expected is None:
        return "not_read", f"{_NOT_READ}; {seen}"
    if not is_powered:
        return "open", f"not tested: the design's power is below 0.8 or unknown; {seen}"
    if evidence.interval is None:
        return "open", f"{seen}, without an interval"
    low, high = evidence.interval
    if expected.size is not None and not low <= expected.size <= high:
        size = _amount(expected.size, evidence.is_share)
        return "against", f"{seen}, which excludes the claimed {size}"
    if low <= 0.0 <= high:
        return "open", f"{seen}; {ruled_out(_amount(rounded_up(max(-low, high)), evidence.is_share))}"
    return ("for" if (low > 0.0) == (expected.sign == "positive") else "against"), seen


def _seen(evidence: Evidence) -> str:
    seeds = counted(len(evidence.difference_S), "seed")
    text = f"{seeds}, difference {_amount(evidence.difference, evidence.is_share)}"
    if evidence.interval is None:
        return text
    scale = 100.0 if evidence.is_share else 1.0
    low, high = (f"{scale * end:+.3g}" for end in evidence.interval)
    return f"{text} [{low}, {high}]"


def _amount(value: float, is_share: bool) -> str:
    return points(value) if is_share else f"{value:.3g}"
