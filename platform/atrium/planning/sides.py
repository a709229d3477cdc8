"""Balance of sampling and training in a run, with bounds for complete overlap and for more devices.

All figures are computed from medians over recorded steps. The times of sampling and of training are each
assumed to be inversely proportional to the number of devices used. Engines with few rows and small updates
scale worse than that, so the figures are bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from atrium.base import metrics

_SAMPLING = (metrics.ROLLOUT_S, metrics.GRADE_WAIT_S)
_TRAINING = (metrics.SCORE_S, metrics.UPDATE_S, metrics.KL_S)
_NOT_EVERY_STEP = (metrics.EVALUATE_S, metrics.CHECKPOINT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Times and devices of the two sides of a step: sampling and training.

    Evaluations and checkpoints are not included.

    Attributes
    ----------
    sampling_s, training_s
        Seconds of sampling, including the wait for grading, and of training passes and updates.
    rest_s
        Seconds in which neither side works, such as the transfer of weights.
    step_s
        Seconds of a whole step.
    num_engines, num_trainers
        Number of devices that sample and number of devices that train. Engines in the trainer's process use
        the same devices for both.
    num_steps
        Number of steps over which medians are taken.

    Examples
    --------
    Two engines sample for 6 s and a trainer needs 2 s; three times as many engines would sample in 2 s:

    >>> sides = Sides(sampling_s=6.0, training_s=2.0, rest_s=0.5, step_s=6.9, num_engines=2, num_trainers=1,
    ...     num_steps=20)
    >>> sides.bound_s, sides.engines_per_trainer, sides.bound_with(6)
    (6.5, 6.0, 2.5)
    """

    sampling_s: float
    training_s: float
    rest_s: float
    step_s: float
    num_engines: int
    num_trainers: int
    num_steps: int

    @property
    def bound_s(self) -> float:
        """Minimum seconds of a step if both sides overlap completely, each on its own devices."""
        return self.bound_with(self.num_engines)

    @property
    def engines_per_trainer(self) -> float:
        """Number of sampling devices per training device at which both sides take the same time."""
        return self.sampling_s * self.num_engines / (self.training_s * self.num_trainers)

    @property
    def balance(self) -> tuple[int, int]:
        """`engines_per_trainer` as a rounded ratio of whole numbers (engines, trainers), one of them 1."""
        each = self.engines_per_trainer
        return (round(each), 1) if each >= 1 else (1, round(1 / each))

    def bound_with(self, num_engines: float) -> float:
        """Return the minimum seconds of a step if `num_engines` engines sample while the trainers train.

        The trainers stay the same.
        """
        return max(self.sampling_s * self.num_engines / num_engines, self.training_s) + self.rest_s


def sides_of(
    steps: Sequence[Mapping[str, float]], *, num_engines: int, num_trainers: int, overlaps: bool
) -> Sides | None:
    """Return the times and devices of sampling and training, from a run's recorded metrics of each step.

    The first step is left out, since with a lag it also samples batches for later steps. Steps without
    sampling or training time are left out too. The result is None if fewer than two steps remain. `overlaps`
    says whether the run samples during updates; if so, sampling lengthens a step only by the trainer's wait
    for a batch.
    """

    def seconds(step: Mapping[str, float], quantities: Sequence[metrics.Quantity]) -> float:
        found = (step.get(quantity.name, 0.0) for quantity in quantities)
        return sum(value for value in found if math.isfinite(value))

    counted = [step for step in steps[1:] if seconds(step, _SAMPLING) > 0 and seconds(step, _TRAINING) > 0]
    if len(counted) < 2:
        return None
    sampling_s, training_s = (
        median(seconds(step, side) for step in counted) for side in (_SAMPLING, _TRAINING)
    )
    waited = (metrics.BATCH_WAIT_S,) if overlaps else _SAMPLING
    busy_s = median(seconds(step, (*_TRAINING, *waited)) for step in counted)
    step_s = median(seconds(step, (metrics.STEP_S,)) - seconds(step, _NOT_EVERY_STEP) for step in counted)
    step_s = max(step_s, busy_s)
    return Sides(
        sampling_s=sampling_s,
        training_s=training_s,
        rest_s=step_s - busy_s,
        step_s=step_s,
        num_engines=num_engines,
        num_trainers=num_trainers,
        num_steps=len(counted),
    )
