"""Planning a study: the difference that so many seeds detect, and the seeds that an effect needs.

The runs at hand are a pilot: they say how seeds and problems vary, and the study that is planned is judged by
other runs. A pilot of few seeds knows its own spread badly, and a plan from it as it stands keeps its promise
half of the time. Plans therefore take the upper 80 % bound of the pilot's standard error: power 0.8 with
assurance 0.8. The observed difference plays no part, since power computed from it only restates the p value
(Hoenig and Heisey 2001).

Sources: power of Student's t by the noncentral t distribution, e.g. Cohen 1988, ch. 2; bounds of a variance
by chi square, sample sizes from a pilot's bound, Browne 1995.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import chdtri, nctdtr, ndtr, stdtrit

from atrium.stats.crossed import VarianceComponents

POWER = ASSURANCE = 0.8
PLANNED_SEEDS = (3, 5, 10, 20)
Exam = Literal["another", "this"]
_MAX_SEEDS = 1_000
_LARGE = 30.0
"""Noncentrality beyond which scipy's series is slow; power is then 1 for any sensible degrees of freedom."""
_NEVER_BELOW = 5.0
"""Noncentrality beyond which a t as far on the other side is too rare to count (and scipy's has gaps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What another study of two arms would show, with new problems and with the same ones.

    `detectable` is the smallest difference that so many seeds per arm find, `num_seeds` the fewest that find
    `effect`, None where 1,000 are too few.
    """

    effect: float
    detectable: Mapping[Exam, Mapping[int, float]]
    num_seeds: Mapping[Exam, int | None]

    def seeds_words(self, exam: Exam) -> str:
        """The seeds that the effect needs; "more problems" where only the same problems show it."""
        needed = self.num_seeds[exam]
        if needed is not None:
            return str(needed)
        return "over 1,000" if self.num_seeds["this"] is None else "more problems"


def plan(pilots: Sequence[VarianceComponents], effect: float) -> Plan | None:
    """A plan from the differences of a study from its baseline; None without any that has two seeds.

    None too where nothing varied, as in runs too short to learn: that says nothing of other runs.
    """
    components = pooled(pilots)
    if components is None or components.seed + components.problem + components.residual <= 0.0:
        return None
    exams: tuple[Exam, ...] = ("another", "this")
    return Plan(
        effect=effect,
        detectable={
            exam: {num: detectable_difference(components, num, exam) for num in PLANNED_SEEDS}
            for exam in exams
        },
        num_seeds={exam: num_seeds_needed(components, effect, exam) for exam in exams},
    )


def pooled(pilots: Sequence[VarianceComponents]) -> VarianceComponents | None:
    """The mean components of several differences from one baseline; None without any.

    They share the baseline and the problems, so they are known no better than the best known of them.
    """
    if not pilots:
        return None
    mean = {
        name: sum(getattr(one, name) for one in pilots) / len(pilots)
        for name in ("seed", "problem", "residual")
    }
    return replace(max(pilots, key=lambda one: one.seed_degrees_of_freedom), **mean)


def standard_error(
    components: VarianceComponents, num_seeds: int, exam: Exam = "another"
) -> tuple[float, float]:
    """The standard error that `num_seeds` >= 2 seeds would have, and its degrees of freedom.

    With new problems: seed / S + problem + residual / S, with Satterthwaite's degrees of freedom of the
    mean squares expected; with the same problems (seed + residual) / S with S - 1. As in `crossed`, new
    problems take the latter where it makes the wider interval.
    """
    if num_seeds < 2:
        raise ValueError("one seed cannot show how seeds vary; num_seeds is at least 2")
    return _known(components, num_seeds, exam, num_seeds - 1.0)


def assured_error(components: VarianceComponents, num_seeds: int, exam: Exam) -> tuple[float, float]:
    """The upper 80 % bound of `standard_error`, as far as the pilot knows it, with its degrees of freedom."""
    error, degrees = standard_error(components, num_seeds, exam)
    _, of_pilot = _known(components, num_seeds, exam, components.seed_degrees_of_freedom)
    return error * (of_pilot / float(chdtri(of_pilot, ASSURANCE))) ** 0.5, degrees


def _known(components: VarianceComponents, num_seeds: int, exam: Exam, df_S: float) -> tuple[float, float]:
    by_residual = components.residual / num_seeds
    by_seed = components.seed / num_seeds + by_residual
    if exam == "this":
        return by_seed**0.5, df_S
    by_problem, df_P = components.problem + by_residual, components.problem_degrees_of_freedom
    total = by_seed + by_problem - by_residual
    spread = by_seed**2 / df_S + by_problem**2 / df_P + by_residual**2 / (df_S * df_P)
    other = (total**0.5, total**2 / spread if spread > 0.0 else df_S)
    return max(other, (by_seed**0.5, df_S), key=lambda known: -known[0] * float(stdtrit(known[1], 0.025)))


def power(effect: float, standard_error: float, degrees_of_freedom: float, alpha: float = 0.05) -> float:
    """The probability that the two-sided t test of level `alpha` rejects when the difference is `effect`."""
    if standard_error <= 0.0:
        raise ValueError("standard_error is above 0")
    noncentrality = abs(effect) / standard_error
    critical = -float(stdtrit(degrees_of_freedom, alpha / 2.0))
    if noncentrality - critical > _LARGE or degrees_of_freedom > 1e4:
        return float(ndtr(noncentrality - critical) + ndtr(-noncentrality - critical))
    beyond = 1.0 - float(nctdtr(degrees_of_freedom, noncentrality, critical))
    if noncentrality > _NEVER_BELOW:
        return beyond
    return beyond + float(nctdtr(degrees_of_freedom, noncentrality, -critical))


def detectable_difference(components: VarianceComponents, num_seeds: int, exam: Exam = "another") -> float:
    """The smallest difference that a study of so many seeds finds with power 0.8; at most 1, all there is.

    At alpha 0.05, with assurance 0.8 about the pilot's `components`.
    """
    error, degrees = assured_error(components, num_seeds, exam)
    if error == 0.0 or power(1.0, error, degrees) < POWER:
        return 0.0 if error == 0.0 else 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if power(middle, error, degrees) < POWER else (low, middle)
    return high


def num_seeds_needed(components: VarianceComponents, effect: float, exam: Exam = "another") -> int | None:
    """The fewest seeds (2 or more) per arm with which `effect` is found: power and assurance 0.8.

    None where 1000 are too few: for new problems the problems' own variance remains whatever the number of
    seeds, and only more problems help.
    """

    def suffices(num_seeds: int) -> bool:
        error, degrees = assured_error(components, num_seeds, exam)
        return error == 0.0 or power(effect, error, degrees) >= POWER

    if effect == 0.0:
        raise ValueError("an effect of 0 needs no seeds and is never shown")
    return fewest(suffices, _MAX_SEEDS)


def fewest(suffices: Callable[[int], bool], most: int) -> int | None:
    """The smallest number from 2 to `most` that suffices, as do all above it; None where `most` does not."""
    if not suffices(most):
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
