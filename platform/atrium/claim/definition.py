"""What a claim is: the typed content of a file in `conf/claim/<paper>/`.

A claim names two arms, an outcome and the sign or size that is expected, with its source, and for each scale
the sweep that would show it, with the power that this design has. A claim about formulas names a computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atrium.base.section import Axis, Count, Positive, Section, Text
from atrium.runs.curve_outcomes import CurveOutcome
from atrium.stats.power import POWER, power

Scale = Literal["laptop", "day", "paper"]
SCALES: tuple[Scale, ...] = ("laptop", "day", "paper")
MeasureName = Literal["mean", "pass"]


class Outcome(Axis, axis=True):
    """What a claim is about."""

    @property
    def words(self) -> str:
        """The outcome as a page names it."""
        raise NotImplementedError


class ScoreOutcome(Outcome):
    """A score on held-out problems after the last step, in [0, 1]; several benchmarks count equally."""

    kind: Literal["score"]
    measure: MeasureName
    """`mean` for Mean@K over all K samples of the design, `pass` for Pass@k."""
    k: Count
    """The k of Pass@k; of Mean@K the K that the paper has, which changes noise and no expectation."""

    @property
    def words(self) -> str:
        """`Mean@8`, `Pass@8`."""
        return f"{self.measure.capitalize()}@{self.k}"


class CurveScore(Outcome):
    """An outcome of a training curve; a table of answers does not hold it."""

    kind: Literal["curve"]
    curve: CurveOutcome

    @property
    def words(self) -> str:
        """The outcome of the curve."""
        return self.curve.words


class Computation(Outcome):
    """An error that a computation of `atrium theory` finds; nothing is trained."""

    kind: Literal["computation"]
    name: Text

    @property
    def words(self) -> str:
        """The computation's name, with spaces."""
        return self.name.replace("_", " ")


class Expectation(Section):
    """What the paper says comes out: a sign or a size of candidate less baseline, or a bound of an error."""

    sign: Literal["positive", "negative"] | None = None
    size: float | None = None
    """In the outcome's unit: scores in shares, so that 0.02 are 2 points."""
    at_most: Positive | None = None
    """Of a computation's error."""
    source: Text
    """Where the paper says so, and what of it is our reading."""

    @model_validator(mode="after")
    def _check(self) -> Expectation:
        if (self.sign is None) == (self.at_most is None):
            raise ValueError("give sign, or at_most for a computation")
        if self.size is not None and (self.size > 0.0) != (self.sign == "positive"):
            raise ValueError(f"size={self.size:g} does not have the sign {self.sign}")
        return self


class DesignConfig(Section):
    """The runs that would show a claim: a sweep's arms and seeds, and what they were planned to see."""

    sweep: Text
    """A file of `sweeps/`: arms, seeds, and what all runs share."""
    effect: Positive
    """The smallest difference that the design is to see, in the outcome's unit."""
    deviation: Positive | None
    """Of the paired differences of single seeds; null where nobody measured it, and power is not known."""
    source: Text
    """Where both are from."""

    def power(self, num_seeds: int) -> float | None:
        """The probability that so many seeds find the effect (t test, 5 %); None where it is not known."""
        if self.deviation is None or num_seeds < 2:
            return None
        return power(self.effect, self.deviation / num_seeds**0.5, num_seeds - 1.0)

    def is_powered(self, num_seeds: int) -> bool:
        """Whether the power is known and at least 0.8."""
        found = self.power(num_seeds)
        return found is not None and found >= POWER


class Claim(Section):
    """One claim of a paper."""

    paper: Text
    """The folder below `conf/claim`."""
    name: Text
    """The file's name."""
    arxiv: Annotated[str, Field(pattern=r"^\d{4}\.\d{5}$")]
    place: Text
    """Figure, table, theorem or section."""
    statement: Text
    candidate: Text | None = None
    """An arm of the designs' sweeps."""
    baseline: Text | None = None
    """The arm whose outcome is taken off."""
    outcome: Outcome
    expected: Expectation | None
    """null where the statement was not read: what is found beside it is an experiment of our own."""
    designs: Mapping[Scale, DesignConfig] = Field(default_factory=dict)
    ours: tuple[Text, ...] = ()
    """Choices of our own, which the paper does not give."""

    @model_validator(mode="after")
    def _check_whole(self) -> Claim:
        if isinstance(self.outcome, Computation):
            if self.designs or self.candidate or self.baseline:
                raise ValueError("a computation has no arms and no designs; leave them out")
            if self.expected is not None and self.expected.at_most is None:
                raise ValueError("expected: sign is for claims about runs; set at_most for a computation")
            return self
        if self.candidate is None or self.baseline is None or self.candidate == self.baseline:
            raise ValueError("give candidate and baseline, two arms of the designs' sweeps")
        if not self.designs:
            raise ValueError("designs is empty; give the sweep of at least one scale")
        if self.expected is not None and self.expected.sign is None:
            raise ValueError("expected: at_most is for computations; set sign for a claim about runs")
        return self

    @property
    def title(self) -> str:
        """`atr/figure_2a`."""
        return f"{self.paper}/{self.name}"
