"""Inference from published tables: intervals from scores alone, selection bias, and sample sizes.

A table states a score but not its individual answers, so variances are bounded, not estimated. Let there be P
problems, K samples of each, and a score p. The variance over new problems is at most p (1 - p) / P for any K,
which is reached if every problem is always or never solved (binomial over problems). The variance over new
samples of the same problems is at most p (1 - p) / (P K), which is reached if all problems are equally hard.
Two methods count as independent. If the same problems are hard for both, this overstates the variance of
their difference, but the result is still an upper bound. The standard deviation over seeds is stated or
unknown. If it is stated for two or more seeds, its degrees of freedom are the number of seeds minus 1. If it
is stated without a number of seeds, or for one seed, it is assumed to be exact.

If the best of M evaluations with independent noise is stated, it is too high by at most E[max of M binomial
shares] - p. Sums and differences of intervals use the method of variance estimates recovery (MOVER), and
their ends are extended by the possible selection bias if M is stated.

Sources: exact intervals, Clopper and Pearson 1934; MOVER, Zou and Donner 2008.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from scipy.special import bdtr

from atrium.stats.crossed import DIFFERENCES, VarianceComponents
from atrium.stats.estimates import Interval
from atrium.stats.failures import exact_interval
from atrium.stats.power import PLANNED_SEEDS, POWER, assured_error, fewest, num_seeds_needed, power
from atrium.stats.simultaneous import CONFIDENCE, SINGLE, Family

BinomialQuestion = Literal["sampling", "problems"]
Question = Literal["sampling", "problems", "seeds", "seeds and problems"]
"""What an interval treats as new: answers, problems, seeds on the same problems, or seeds and problems."""
MIN_SEEDS = 3
"""Minimum number of seeds per method for conclusions about methods, as in `wording`."""
MAX_PROBLEMS = 10_000_000
_EXACT = 1e6
"""Degrees of freedom of a standard deviation that is assumed to be exact."""
_TAIL = 12.0
"""Standard deviations beyond which a binomial share has no mass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedScore:
    """A published score as a share, and its sample sizes; numbers that are not stated are None.

    `num_evaluations` is the number of evaluations on this benchmark from which the best score was selected; 1
    means no selection. `seed_sd` is the standard deviation over seeds, as a share. Unstated seeds count as
    one.
    """

    score: float
    num_problems: int
    num_samples: int
    num_seeds: int | None = None
    num_evaluations: int | None = None
    seed_sd: float | None = None

    @property
    def num_answers(self) -> int:
        """The number of answers over which the score is a mean."""
        return self.num_problems * self.num_samples * (self.num_seeds or 1)

    def exact(self, question: BinomialQuestion, confidence: float = CONFIDENCE) -> Interval:
        """Return the exact binomial interval of the score.

        The sample consists of all answers for the question `sampling`, and of the problems otherwise.
        """
        num = self.num_answers if question == "sampling" else self.num_problems
        return exact_interval(self.score * num, num, confidence=confidence)

    def interval(self, question: BinomialQuestion) -> Interval:
        """Return the exact interval, with its lower end reduced by the maximum selection bias, if known."""
        low, high = self.exact(question)
        return Interval(max(low - (self.inflation or 0.0), 0.0), high)

    @property
    def inflation(self) -> float | None:
        """The maximum selection bias of the score as an estimate for the same problems.

        None if the number of evaluations is not stated.
        """
        return self._inflation(self.num_problems * self.num_samples)

    @property
    def inflation_elsewhere(self) -> float | None:
        """A loose bound on the selection bias of the score as an estimate for new problems.

        It assumes that each evaluation has its own problems. None if the number of evaluations is not stated.
        """
        return self._inflation(self.num_problems)

    def _inflation(self, num: int) -> float | None:
        return (
            None if self.num_evaluations is None else best_of_inflation(self.score, num, self.num_evaluations)
        )


def best_of_inflation(share: float, num_answers: int, num_evaluations: int) -> float:
    """Return E[max of M observed shares] - `share`, for M evaluations of n answers each.

    Each answer is correct with probability `share`, so an observed share is binomial. The maximum has the
    distribution function F^M, where F is the distribution function of one observed share.
    """
    if num_evaluations == 1 or share in (0.0, 1.0):
        return 0.0
    spread = _TAIL * math.sqrt(num_answers * share * (1.0 - share)) + _TAIL
    low = max(math.floor(num_answers * share - spread), 0)
    high = min(math.ceil(num_answers * share + spread), num_answers)
    cdf = bdtr(np.arange(low, high, dtype=np.float64), num_answers, share)
    return (low + float((1.0 - cdf**num_evaluations).sum())) / num_answers - share


def is_attainable(score: float, num_answers: int, step: float) -> bool:
    """Return whether some count of correct answers out of `num_answers` gives `score` to within `step`.

    `score` is a share, and `step` one unit of its last stated digit.
    """
    nearest = round(score * num_answers) / num_answers
    return abs(nearest - score) <= step * (1.0 + 1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedDifference:
    """Candidate minus baseline, with one interval per `Question`.

    A `Question` names the sources of variation that an interval covers. An interval is None if it requires
    the spread over seeds and this spread is unknown. `choosing` is the range of the difference's possible
    selection bias, or None if a method's number of evaluations is not stated. Intervals do not cover a bias
    that is unknown. `num_seeds` is the smaller of the two methods' numbers of seeds.
    """

    value: float
    choosing: Interval | None
    num_seeds: int
    intervals: Mapping[Question, Interval | None]

    @property
    def is_established(self) -> bool:
        """Whether the table establishes a difference between the methods for new seeds and new problems.

        This requires at least three stated seeds per method, and that both methods' numbers of evaluations
        are stated.
        """
        is_stated = self.choosing is not None and self.num_seeds >= MIN_SEEDS
        return is_stated and self.excludes_zero("seeds and problems")

    def excludes_zero(self, question: Question) -> bool:
        """Return whether the interval is known and excludes 0."""
        known = self.intervals[question]
        return known is not None and not known.low <= 0.0 <= known.high


def stated_difference(
    candidate: Sequence[StatedScore], baseline: Sequence[StatedScore], *, family: Family = SINGLE
) -> StatedDifference:
    """Return the mean difference of two methods over benchmarks, which have equal weights.

    Each method has one score per benchmark. Benchmarks share seeds, so the standard deviation over seeds of
    the mean over benchmarks is at most the mean of the benchmarks' standard deviations.
    """
    arms = ((1.0, candidate), (-1.0, baseline))
    added = [_mean_or_none([one.inflation for one in arm]) for _, arm in arms]
    value = sum(sign * _score(arm) for sign, arm in arms)
    level = 1.0 - (1.0 - CONFIDENCE) / family.num

    def exact(question: BinomialQuestion) -> list[_Term]:
        return [(sign / len(arm), one.score, one.exact(question, level)) for sign, arm in arms for one in arm]

    seeds: list[_Term] | None = None
    if (spreads := _seed_spreads(candidate, baseline)) is not None:
        halves = [sd / math.sqrt(num) * family.quantile(df) for sd, num, df in spreads]
        seeds = [(1.0, 0.0, Interval(-half, half)) for half in halves]
    terms: dict[Question, list[_Term] | None] = {
        "sampling": exact("sampling"),
        "problems": exact("problems"),
        "seeds": seeds,
        "seeds and problems": seeds and exact("problems") + seeds,
    }
    return StatedDifference(
        value=value,
        choosing=None if None in added else Interval(-(added[1] or 0.0), added[0] or 0.0),
        num_seeds=min(one.num_seeds or 1 for _, arm in arms for one in arm),
        intervals={
            question: None if some is None else _combined(value, some, [one or 0.0 for one in added])
            for question, some in terms.items()
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedPlan:
    """The sample sizes that detect a difference of `effect` with power 0.8, in a study without selection.

    Numbers of problems are totals over all benchmarks. `num_problems` assumes that seeds do not vary, and is
    None if 10,000,000 are too few. `has_seeds` says whether the spread over seeds is known. If it is,
    `num_seeds` is the number of seeds per method for the same problems (None for more than 1,000), and
    `num_problems_with` has the number of new problems for each number of seeds (None if more seeds are
    needed). Otherwise, `num_seeds` is None and `num_problems_with` is empty.
    """

    effect: float
    num_problems: int | None
    has_seeds: bool
    num_seeds: int | None
    num_problems_with: Mapping[int, int | None]


def stated_plan(
    candidate: Sequence[StatedScore], baseline: Sequence[StatedScore], effect: float
) -> StatedPlan:
    """Return the numbers of problems and of seeds with which a study would detect the difference `effect`.

    Variances are the upper bounds that the two methods' stated scores allow.
    """
    arms = (candidate, baseline)
    num = sum(one.num_problems for one in candidate)
    by_problem = sum(
        one.score * (1.0 - one.score) / one.num_problems / len(arm) ** 2 for arm in arms for one in arm
    )
    spreads = _seed_spreads(candidate, baseline)
    variances = [sd**2 for sd, _, _ in spreads or ()]
    of_pilot = sum(sd**4 / df for sd, _, df in spreads or ())
    known = VarianceComponents(
        seed=sum(variances),
        problem=by_problem,
        residual=0.0,
        seed_degrees_of_freedom=sum(variances) ** 2 / of_pilot if of_pilot else _EXACT,
        problem_degrees_of_freedom=max(num - 1.0, 1.0),
    )

    def finds(num_seeds: int | None, num_problems: int) -> bool:
        scaled = _with_problems(known, num, num_problems)
        error, degrees = (
            (scaled.problem**0.5, num_problems - 1.0)
            if num_seeds is None
            else assured_error(scaled, num_seeds, "new")
        )
        return error == 0.0 or power(effect, error, degrees) >= POWER

    has_seeds = spreads is not None
    return StatedPlan(
        effect=effect,
        num_problems=fewest(partial(finds, None), MAX_PROBLEMS),
        has_seeds=has_seeds,
        num_seeds=num_seeds_needed(known, effect, "same") if has_seeds else None,
        num_problems_with={
            num: fewest(partial(finds, num), MAX_PROBLEMS) for num in PLANNED_SEEDS if has_seeds
        },
    )


_Term = tuple[float, float, Interval]
"""A weight, a value, and the value's interval."""


def _combined(value: float, terms: Sequence[_Term], added: Sequence[float]) -> Interval:
    """Return the interval around `value`, combined from `terms` and extended by the possible selection bias.

    `value` is a weighted sum, and each term is a weight, a value and the value's interval. `added` contains
    the bias of the candidate's score, which lowers the lower end, and that of the baseline's score, which
    raises the upper end.
    """
    below = above = 0.0
    for weight, one, (low, high) in terms:
        down, up = (one - low, high - one) if weight > 0.0 else (high - one, one - low)
        below += (weight * down) ** 2
        above += (weight * up) ** 2
    ends = value - math.sqrt(below) - added[0], value + math.sqrt(above) + added[1]
    return Interval(max(ends[0], DIFFERENCES.low), min(ends[1], DIFFERENCES.high))


def _seed_spreads(*arms: Sequence[StatedScore]) -> list[tuple[float, int, float]] | None:
    """Return (standard deviation over seeds, number of seeds, degrees of freedom) for each method.

    The standard deviation is the mean over the method's benchmarks, and the number of seeds is the smallest
    of any benchmark. Returns None if a standard deviation is unknown.
    """
    found = []
    for arm in arms:
        num = min(one.num_seeds or 1 for one in arm)
        sd = _mean_or_none([one.seed_sd for one in arm])
        if sd is None:
            return None
        found.append((sd, num, num - 1.0 if num > 1 else _EXACT))
    return found


def _with_problems(known: VarianceComponents, num: int, num_problems: int) -> VarianceComponents:
    degrees = num_problems - 1.0
    return replace(known, problem=known.problem * num / num_problems, problem_degrees_of_freedom=degrees)


def _score(arm: Sequence[StatedScore]) -> float:
    return sum(one.score for one in arm) / len(arm)


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
