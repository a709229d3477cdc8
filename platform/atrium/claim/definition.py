"""Claims: the typed content of files in `conf/claim/<paper>/`.

A claim about runs has two arms, an outcome, an expected sign or size with its source, and a design for
each scale. A design names the sweep that tests the claim, and the difference that the sweep should
detect. A claim about formulas names a computation instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atrium.base.section import Choice, Count, Positive, Section, Text
from atrium.runs.curve_outcomes import CurveOutcome
from atrium.stats.power import POWER, power

Scale = Literal["laptop", "day", "paper"]
SCALES: tuple[Scale, ...] = ("laptop", "day", "paper")
MeasureName = Literal["mean", "pass"]


class Outcome(Choice, axis=True):
    """The quantity that a claim is about: a score, an outcome of a training curve, or a computed error."""

    @property
    def words(self) -> str:
        """The outcome's name as shown in documents."""
        raise NotImplementedError


class ScoreOutcome(Outcome):
    """A score on held-out problems after the last step, in [0, 1], averaged over benchmarks."""

    kind: Literal["score"]
    measure: MeasureName
    """`mean` for Mean@K over all K samples of the design, `pass` for Pass@k."""
    k: Count
    """The k of Pass@k, or the paper's K of Mean@K, which affects the noise of Mean@K but not its mean."""

    @property
    def words(self) -> str:
        """The score's name, such as `Mean@8` or `Pass@8`."""
        return f"{self.measure.capitalize()}@{self.k}"


class CurveScore(Outcome):
    """An outcome of a training curve, which can be computed from runs but not from a table of answers."""

    kind: Literal["curve"]
    curve: CurveOutcome

    @property
    def words(self) -> str:
        """The name of the curve's outcome."""
        return self.curve.words


class Computation(Outcome):
    """The error of a computation on formulas, without training."""

    kind: Literal["computation"]
    name: Text

    @property
    def words(self) -> str:
        """The computation's name, with spaces instead of underscores."""
        return self.name.replace("_", " ")


class Expectation(Section):
    """The result that the paper states: sign and size of a difference, or an upper bound on an error.

    The difference is the candidate's outcome minus the baseline's.
    """

    sign: Literal["positive", "negative"] | None = None
    size: float | None = None
    """Expected difference in the outcome's unit; scores are fractions, so 0.02 means 2 points."""
    at_most: Positive | None = None
    """Upper bound on a computation's error."""
    source: Text
    """Place in the paper, and our interpretation of it."""

    @model_validator(mode="after")
    def _check(self) -> Expectation:
        if (self.sign is None) == (self.at_most is None):
            raise ValueError(
                "exactly one of sign and at_most must be set; use sign for a claim about runs, at_most "
                "for a computation"
            )
        if self.size is not None and (self.size > 0.0) != (self.sign == "positive"):
            raise ValueError(f"size must be {self.sign} to match sign={self.sign}, got {self.size:g}")
        return self


class DesignConfig(Section):
    """The runs that test a claim: a sweep, and the difference that it should detect."""

    sweep: Text
    """Name of a file in `sweeps/`, which defines the arms, the seeds and the common settings."""
    effect: Positive
    """Smallest difference that the design should detect, in the outcome's unit."""
    deviation: Positive | None
    """Standard deviation of the paired differences over seeds. If it is null, the power is unknown."""
    source: Text
    """Source of `effect` and `deviation`."""

    def power(self, num_seeds: int) -> float | None:
        """Return the power of a paired t test at the 5 % level to detect `effect` with `num_seeds` seeds.

        Returns None if `deviation` is unknown or there are fewer than two seeds.
        """
        if self.deviation is None or num_seeds < 2:
            return None
        return power(self.effect, self.deviation / num_seeds**0.5, num_seeds - 1.0)

    def is_powered(self, num_seeds: int) -> bool:
        """Return whether the power with `num_seeds` seeds is known and at least 0.8."""
        found = self.power(num_seeds)
        return found is not None and found >= POWER


class Claim(Section):
    """A claim of a paper, with the designs or the computation that test it."""

    paper: Text
    """Name of the paper's folder in `conf/claim`."""
    name: Text
    """Name of the claim's file without its suffix."""
    arxiv: Annotated[str, Field(pattern=r"^\d{4}\.\d{5}$")]
    place: Text
    """Place of the claim in the paper: a figure, table, theorem or section."""
    statement: Text
    candidate: Text | None = None
    """Arm of the designs' sweeps whose outcome is tested."""
    baseline: Text | None = None
    """Arm whose outcome is subtracted from the candidate's."""
    outcome: Outcome
    expected: Expectation | None
    """The stated result, or null if it was not available. The designs are then our own experiments."""
    designs: Mapping[Scale, DesignConfig] = Field(default_factory=dict)
    ours: tuple[Text, ...] = ()
    """Our choices where the paper gives none."""

    @model_validator(mode="after")
    def _check_whole(self) -> Claim:
        if isinstance(self.outcome, Computation):
            if self.designs or self.candidate or self.baseline:
                raise ValueError(
                    "candidate, baseline and designs cannot be set for a computation; remove them"
                )
            if self.expected is not None and self.expected.at_most is None:
                raise ValueError(
                    "expected.sign applies only to claims about runs; set expected.at_most for a computation"
                )
            return self
        if self.candidate is None or self.baseline is None or self.candidate == self.baseline:
            raise ValueError("candidate and baseline must be two different arms of the designs' sweeps")
        if not self.designs:
            raise ValueError("designs must contain at least one scale, such as laptop: {sweep: NAME}")
        if self.expected is not None and self.expected.sign is None:
            raise ValueError(
                "expected.at_most applies only to computations; set expected.sign for a claim about runs"
            )
        return self

    @property
    def title(self) -> str:
        """The claim's identifier, such as `atr/figure_2a`."""
        return f"{self.paper}/{self.name}"
