"""Planning a study: the difference that a number of seeds detects, and the number that an effect requires.

The existing runs are a pilot study: they show how seeds and problems vary. The planned study will have new
runs. A pilot of few seeds estimates its own spread poorly, and a plan based directly on it reaches its power
only half of the time. Plans therefore use the upper 80 % bound of the pilot's standard error: power 0.8 with
assurance 0.8. The observed difference is not used, since power computed from it only restates the p value
(Hoenig and Heisey 2001).

Sources: power of Student's t by the noncentral t distribution, Cohen 1988, ch. 2; bounds of a variance by chi
square and sample sizes from a pilot's bound, Browne 1995.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import chdtri, nctdtr, ndtr, stdtrit

from atrium.stats.crossed import VarianceComponents

POWER = ASSURANCE = 0.8
PLANNED_SEEDS = (3, 5, 10, 20)
Problems = Literal["new", "same"]
_MAX_SEEDS = 1_000
_LARGE = 30.0
"""Excess of noncentrality over the critical value beyond which scipy's series is slow; power is then 1."""
_NEVER_BELOW = 5.0
"""Noncentrality above which the opposite tail is negligible; scipy's values for it have gaps there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sample sizes for another study of two arms.

    The keys `new` and `same` stand for new problems and for the same problems. For each, `detectable` maps
    numbers of seeds per arm to the smallest difference that these seeds detect, and `num_seeds` is the
    smallest number of seeds per arm that detects `effect`, or None if 1,000 are too few.
    """

    effect: float
    detectable: Mapping[Problems, Mapping[int, float]]
    num_seeds: Mapping[Problems, int | None]

    def seeds_words(self, problems: Problems) -> str:
        """Return the number of seeds needed, as text.

        The text is "more problems" if 1,000 seeds are too few for new problems but not for the same problems,
        and "over 1,000" if they are too few for both.
        """
        needed = self.num_seeds[problems]
        if needed is not None:
            return str(needed)
        return "over 1,000" if self.num_seeds["same"] is None else "more problems"


def plan(pilots: Sequence[VarianceComponents], effect: float) -> Plan | None:
    """Return a plan to detect a difference of `effect`, from the variance components of a pilot study.

    `pilots` are the components of the study's differences from its baseline. Returns None if `pilots` is
    empty (a single seed has no components), or if the mean components are all 0: runs that are too short to
    learn anything cannot predict other runs. Raises `ValueError` for an effect of 0.
    """
    components = pooled(pilots)
    if components is None or components.seed + components.problem + components.residual <= 0.0:
        return None
    kinds: tuple[Problems, ...] = ("new", "same")
    return Plan(
        effect=effect,
        detectable={
            problems: {num: detectable_difference(components, num, problems) for num in PLANNED_SEEDS}
            for problems in kinds
        },
        num_seeds={problems: num_seeds_needed(components, effect, problems) for problems in kinds},
    )


def pooled(pilots: Sequence[VarianceComponents]) -> VarianceComponents | None:
    """Return the mean components of several differences from one baseline, or None for an empty list.

    The differences share the baseline and the problems. Their mean therefore has only the degrees of freedom
    of a single difference: those of the difference with the most degrees of freedom over seeds.
    """
    if not pilots:
        return None
    mean = {
        name: sum(getattr(one, name) for one in pilots) / len(pilots)
        for name in ("seed", "problem", "residual")
    }
    return replace(max(pilots, key=lambda one: one.seed_degrees_of_freedom), **mean)


def standard_error(
    components: VarianceComponents, num_seeds: int, problems: Problems = "new"
) -> tuple[float, float]:
    """Return the standard error for `num_seeds` >= 2 seeds, and its degrees of freedom.

    With new problems, the variance is seed / S + problem + residual / S, with Satterthwaite's degrees of
    freedom for the expected mean squares. With the same problems, it is (seed + residual) / S, with S - 1
    degrees of freedom. As in `crossed`, the result for new problems is that for the same problems if the
    latter gives a wider interval.
    """
    if num_seeds < 2:
        raise ValueError(
            "num_seeds must be at least 2, since a single seed cannot show the variance over seeds"
        )
    return _known(components, num_seeds, problems, num_seeds - 1.0)


def assured_error(components: VarianceComponents, num_seeds: int, problems: Problems) -> tuple[float, float]:
    """Return the upper 80 % bound of the standard error, and the standard error's degrees of freedom.

    The bound accounts for the uncertainty of the pilot's variances. The arguments are those of
    `standard_error`.
    """
    error, degrees = standard_error(components, num_seeds, problems)
    _, of_pilot = _known(components, num_seeds, problems, components.seed_degrees_of_freedom)
    return error * (of_pilot / float(chdtri(of_pilot, ASSURANCE))) ** 0.5, degrees


def _known(
    components: VarianceComponents, num_seeds: int, problems: Problems, df_S: float
) -> tuple[float, float]:
    by_residual = components.residual / num_seeds
    by_seed = components.seed / num_seeds + by_residual
    if problems == "same":
        return by_seed**0.5, df_S
    by_problem, df_P = components.problem + by_residual, components.problem_degrees_of_freedom
    total = by_seed + by_problem - by_residual
    spread = by_seed**2 / df_S + by_problem**2 / df_P + by_residual**2 / (df_S * df_P)
    other = (total**0.5, total**2 / spread if spread > 0.0 else df_S)
    return max(other, (by_seed**0.5, df_S), key=lambda known: -known[0] * float(stdtrit(known[1], 0.025)))


def power(effect: float, standard_error: float, degrees_of_freedom: float, alpha: float = 0.05) -> float:
    """Return the power of the two-sided t test at level `alpha`.

    This is the probability that the test finds a difference if the true difference is `effect`.
    """
    if standard_error <= 0.0:
        raise ValueError(f"standard_error must be greater than 0, got {standard_error}")
    noncentrality = abs(effect) / standard_error
    critical = -float(stdtrit(degrees_of_freedom, alpha / 2.0))
    if noncentrality - critical > _LARGE or degrees_of_freedom > 1e4:
        return float(ndtr(noncentrality - critical) + ndtr(-noncentrality - critical))
    beyond = 1.0 - float(nctdtr(degrees_of_freedom, noncentrality, critical))
    if noncentrality > _NEVER_BELOW:
        return beyond
    return beyond + float(nctdtr(degrees_of_freedom, noncentrality, -critical))


def detectable_difference(
    components: VarianceComponents, num_seeds: int, problems: Problems = "new"
) -> float:
    """Return the smallest difference, at most 1, that `num_seeds` seeds per arm detect with power 0.8.

    Returns 1 if even a difference of 1 is not detected, and 0 if the standard error is 0. The test has level
    0.05. The power is reached with assurance 0.8, given the pilot's `components`.
    """
    error, degrees = assured_error(components, num_seeds, problems)
    if error == 0.0 or power(1.0, error, degrees) < POWER:
        return 0.0 if error == 0.0 else 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if power(middle, error, degrees) < POWER else (low, middle)
    return high


def num_seeds_needed(components: VarianceComponents, effect: float, problems: Problems = "new") -> int | None:
    """Return the smallest number of seeds (at least 2) per arm that detects `effect`.

    Power and assurance are 0.8. Returns None if 1,000 seeds are too few. Raises `ValueError` for an effect of
    0. For new problems, more seeds do not reduce the variance over problems; only more problems do.
    """

    def suffices(num_seeds: int) -> bool:
        error, degrees = assured_error(components, num_seeds, problems)
        return error == 0.0 or power(effect, error, degrees) >= POWER

    if effect == 0.0:
        raise ValueError("effect must not be 0, since no number of seeds can detect an effect of 0")
    return fewest(suffices, _MAX_SEEDS)


def fewest(suffices: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 2 to `most` for which `suffices` is True, or None if there is none.

    The search is a bisection, so `suffices` must stay True for all larger numbers.
    """
    found = bisect_left(range(2, most + 1), True, key=suffices) + 2
    return found if found <= most else None
