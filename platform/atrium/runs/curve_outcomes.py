"""Outcomes of learning curves: one number per run, computed from a recorded metric of its steps.

Steps are counted from 1, and the rollouts of a step are sampled before its updates. The last score shows
where a run ended. These outcomes show how it got there, which distinguishes methods with equal last scores.

Axes: N recorded steps.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from atrium.base.records import Floats
from atrium.base.section import Choice, Count, Number, Text

_CUT = 1e-5
"""Shares are clamped to [_CUT, 1 - _CUT] before their log-odds are computed."""


class CurveOutcome(Choice, axis=True):
    """A statistic of one metric's curve in a run, up to the step `until`."""

    metric: Text
    """The recorded quantity, such as `rollout/reward`."""
    until: Annotated[int, Field(ge=2, le=10**9)]
    """Last step that counts, the same for all compared runs."""

    def of_curve(self, step_N: Floats, value_N: Floats) -> float | None:
        """Return the outcome of a curve, or None if it cannot be computed from the recorded steps.

        `value_N` contains the metric at the steps `step_N`, with NaN where it was not recorded.
        """
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The outcome's name for a table header."""
        raise NotImplementedError


class Area(CurveOutcome):
    """The mean of the metric over the steps `start` to `until`.

    Examples
    --------
    >>> early = Area(kind="area", metric="rollout/reward", until=3)
    >>> early.of_curve(np.arange(1.0, 5), np.array([1.0, 2.0, 6.0, 9.0]))
    3.0
    """

    kind: Literal["area"]
    """Kind of outcome."""
    start: Count = 1
    """First step that counts."""

    @model_validator(mode="after")
    def _check_span(self) -> Area:
        if self.start > self.until:
            raise ValueError(f"start={self.start} must be at most until={self.until}; choose an earlier step")
        return self

    def of_curve(self, step_N: Floats, value_N: Floats) -> float | None:
        """Return the mean, or None if the metric is missing at one of the steps `start` to `until`."""
        span_N = (step_N >= self.start) & (step_N <= self.until) & np.isfinite(value_N)
        is_whole = int(span_N.sum()) == self.until - self.start + 1
        return float(value_N[span_N].mean()) if is_whole else None

    @property
    def words(self) -> str:
        """The outcome's name for a table header."""
        return f"mean {self.metric} over steps {self.start} to {self.until}"


class StepsTo(CurveOutcome):
    """The step at which the metric first reaches `value` from below, interpolated between steps.

    If the metric does not reach the value by step `until`, the outcome is `until`. No run is left out for
    this reason, so means over runs are restricted means. If the first recorded value is already high enough,
    the outcome is its step. With `scale="log_odds"`, shares near 0 and 1 are clamped. If the shares before
    and after the crossing are clamped to the same share, the outcome is the first step that reaches `value`.

    Examples
    --------
    >>> half = StepsTo(kind="steps_to", metric="rollout/worked_frac", value=0.5, until=4)
    >>> half.of_curve(np.arange(1.0, 5), np.array([0.1, 0.4, 0.6, 0.9]))
    2.5
    >>> half.of_curve(np.arange(1.0, 5), np.array([0.1, 0.2, 0.3, 0.4]))
    4.0
    """

    kind: Literal["steps_to"]
    """Kind of outcome."""
    value: Number
    """Value to reach."""
    scale: Literal["linear", "log_odds"] = "linear"
    """Scale of the interpolation: the metric, or the log-odds of a share, in which such curves are
    straighter."""

    @model_validator(mode="after")
    def _check_share(self) -> StepsTo:
        if self.scale == "log_odds" and not 0.0 < self.value < 1.0:
            raise ValueError(f"value must be above 0 and below 1 for log-odds, got {self.value:g}")
        return self

    def of_curve(self, step_N: Floats, value_N: Floats) -> float | None:
        """Return the step, or None if the metric stays below `value` and is missing at step `until`."""
        known_N = np.isfinite(value_N) & (step_N <= self.until)
        step_N, value_N = step_N[known_N], value_N[known_N]
        reached = np.flatnonzero(value_N >= self.value)
        if not len(reached):
            return float(self.until) if len(step_N) and step_N[-1] == self.until else None
        last = int(reached[0])
        if last == 0:
            return float(step_N[0])
        low, high, wanted = (self._scaled(one) for one in (value_N[last - 1], value_N[last], self.value))
        share = (wanted - low) / (high - low) if high > low else 1.0
        return float(step_N[last - 1] + share * (step_N[last] - step_N[last - 1]))

    @property
    def words(self) -> str:
        """The outcome's name for a table header."""
        return f"steps to {self.metric} of {self.value:g}, at most {self.until}"

    def _scaled(self, value: float) -> float:
        if self.scale == "linear":
            return float(value)
        share = min(max(float(value), _CUT), 1.0 - _CUT)
        return float(np.log(share / (1.0 - share)))


class Fall(CurveOutcome):
    """The largest drop of the metric's moving mean below its earlier maximum, or 0 if it never drops.

    Examples
    --------
    >>> fall = Fall(kind="fall", metric="rollout/reward", width=1, until=4)
    >>> fall.of_curve(np.arange(1.0, 5), np.array([1.0, 3.0, 1.0, 2.0]))
    2.0
    """

    kind: Literal["fall"]
    """Kind of outcome."""
    width: Count
    """Number of steps of the moving mean."""

    @model_validator(mode="after")
    def _check_width(self) -> Fall:
        if self.width >= self.until:
            raise ValueError(
                f"width={self.width} leaves fewer than two means by until={self.until}; use a smaller width"
            )
        return self

    def of_curve(self, step_N: Floats, value_N: Floats) -> float | None:
        """Return the drop, or None if the metric is missing at one of the steps 1 to `until`."""
        value_N = value_N[(step_N <= self.until) & np.isfinite(value_N)]
        if len(value_N) != self.until:
            return None
        mean_N = np.convolve(value_N, np.full(self.width, 1.0 / self.width), mode="valid")
        return float((np.maximum.accumulate(mean_N) - mean_N).max())

    @property
    def words(self) -> str:
        """The outcome's name for a table header."""
        return f"largest fall of {self.metric}, mean of {self.width} steps, until {self.until}"
