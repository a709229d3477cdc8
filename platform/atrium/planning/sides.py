"""What a run's own times say of its two sides, sampling and training: who waits, and what overlap allows.

Arithmetic on medians of recorded steps. A side's time is taken to fall in proportion to its devices, which
engines with few rows and updates with little work do not reach: the figures are bounds. Never torch.
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
    """The times of a step, evaluations and checkpoints left out, and who took them.

    Attributes
    ----------
    sampling_s, training_s
        Seconds of sampling with what grading adds, and of passes and updates.
    rest_s
        Seconds in which neither side can work, such as those of handing weights over.
    step_s
        Seconds of a whole step.
    num_engines, num_trainers
        Devices that sample, and devices that train; where engines live inside, the same ones.
    num_steps
        Steps behind the medians.

    Examples
    --------
    Two engines that sample for 6 s beside a trainer that takes 2 s: three times as many devices as now would
    sample in the time of an update.

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
        """The least seconds of a step whose sides work at once, each on devices of its own."""
        return self.bound_with(self.num_engines)

    @property
    def engines_per_trainer(self) -> float:
        """Devices that sample for each one that trains with which both sides take equally long."""
        return self.sampling_s * self.num_engines / (self.training_s * self.num_trainers)

    @property
    def balance(self) -> tuple[int, int]:
        """The same in whole devices of each side, of which one has a single one."""
        each = self.engines_per_trainer
        return (round(each), 1) if each >= 1 else (1, round(1 / each))

    def bound_with(self, num_engines: float) -> float:
        """Minimum seconds of a step with this number of engines and the present number of trainers."""
        return max(self.sampling_s * self.num_engines / num_engines, self.training_s) + self.rest_s


def sides_of(
    steps: Sequence[Mapping[str, float]], *, num_engines: int, num_trainers: int, overlaps: bool
) -> Sides | None:
    """The sides of a run, from what its steps recorded by name; None where two steps do not tell.

    The first step, which samples every batch that is ahead, does not count. With `overlaps`, sampling took
    time of a step only as far as the trainer waited for it.
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
