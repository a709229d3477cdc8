"""Two arms compared, and what may be said about them: `compare_arms` and `verdict`.

An arm is a list of arrays `value_SP`, one per benchmark: what each seed's checkpoint did on each problem, a
share in [0, 1] (Mean@K or Pass@k of the problem). Both arms have the same seeds and problems in the same
order; values are subtracted cell by cell before anything is averaged, so that what makes a problem hard, and
what a seed shares between arms, cancels. See `crossed` for the two intervals, `power` for what a design
detects, `robust` for what needs many seeds. Differences are candidate minus baseline; one point is 0.01.

Axes: S seeds, P problems, B benchmarks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from atrium.compare.crossed import Bounds, CrossedMean, SamplingNoise, crossed_mean
from atrium.compare.power import Exam, minimum_detectable_difference, num_seeds_needed
from atrium.compare.robust import (
    bootstrap_interval,
    interquartile_mean,
    mean_scores,
    permutation_p_value,
    probability_of_improvement,
)

ALPHA, POWER = 0.05, 0.8
SHARES = Bounds(0.0, 1.0)
VerdictKind = Literal["better", "worse", "not_distinguishable", "same_method", "not_estimable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate against a baseline. What cannot be estimated is None.

    `difference` holds both intervals. `rho_another_exam` is the correlation that pairing makes use of,
    1 - SE_paired^2 / (SE_baseline^2 + SE_candidate^2): pairing multiplies the standard error by
    sqrt(1 - rho), and a negative one says that it did harm; `rho_this_exam` likewise over seeds.
    `improvement` is the probability that a seed of the candidate scores higher (two seeds or more), its
    interval and the IQMs need 10 seeds, `permutation_p` 6. `detectable_*` are the smallest differences
    found at alpha 0.05 with power 0.8 by this design; for one seed, by these checkpoints on another exam.
    """

    difference: CrossedMean
    baseline: CrossedMean
    candidate: CrossedMean
    rho_another_exam: float | None
    rho_this_exam: float | None
    improvement: float | None
    improvement_interval: Bounds | None
    iqm_baseline: float | None
    iqm_candidate: float | None
    iqm_difference_interval: Bounds | None
    permutation_p: float | None
    detectable_another_exam: float | None
    detectable_this_exam: float | None

    def num_seeds_for(self, effect: float, exam: Exam = "another") -> int | None:
        """Seeds per arm that an effect (as a share, 0.02 for two points) needs, by this design's components.

        None where one seed shows no components, or no number of seeds suffices without more problems.
        """
        components = self.difference.components
        if components is None:
            return None
        return num_seeds_needed(components, effect, exam=exam, alpha=ALPHA, target=POWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may be claimed, in words. `kind` is about another exam; `p_value` is what decided, if any."""

    kind: VerdictKind
    words: str
    is_about_checkpoints_only: bool
    p_value: float | None


def compare_arms(
    baseline: Sequence[ArrayLike],
    candidate: Sequence[ArrayLike],
    *,
    sampling: SamplingNoise | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two arms, lists of `value_SP` by benchmark with the same seeds and problems in the same order.

    `sampling` is the noise of the difference, for one seed (see `crossed.sampling_noise`); `seed` starts the
    bootstrap. Raises `ValueError` where shapes differ or values are not shares.
    """
    arms = [[np.asarray(value_SP, dtype=np.float64) for value_SP in arm] for arm in (baseline, candidate)]
    if [value.shape for value in arms[0]] != [value.shape for value in arms[1]]:
        raise ValueError("both arms need the same benchmarks, seeds and problems")
    if any(np.any((value < 0.0) | (value > 1.0)) for arm in arms for value in arm):
        raise ValueError("values are shares and lie in [0, 1]")
    means = [crossed_mean(arm, limits=SHARES, confidence=confidence) for arm in arms]
    gaps = [after - before for before, after in zip(*arms, strict=True)]
    difference = crossed_mean(gaps, confidence=confidence, sampling=sampling)
    scores = [mean_scores(arm) for arm in arms]
    improvement_interval = bootstrap_interval(
        scores, lambda s: probability_of_improvement(s[1], s[0]), seed=seed, confidence=confidence
    )
    iqm_interval = bootstrap_interval(
        scores,
        lambda s: interquartile_mean(s[1]) - interquartile_mean(s[0]),
        seed=seed,
        paired=True,
        confidence=confidence,
    )
    has_seeds, has_many = difference.num_seeds > 1, iqm_interval is not None
    return Comparison(
        difference=difference,
        baseline=means[0],
        candidate=means[1],
        rho_another_exam=_rho(difference, means, "another"),
        rho_this_exam=_rho(difference, means, "this") if has_seeds else None,
        improvement=float(probability_of_improvement(scores[1], scores[0])) if has_seeds else None,
        improvement_interval=improvement_interval,
        iqm_baseline=float(interquartile_mean(scores[0])) if has_many else None,
        iqm_candidate=float(interquartile_mean(scores[1])) if has_many else None,
        iqm_difference_interval=iqm_interval,
        permutation_p=permutation_p_value(difference.value_S, seed=seed),
        detectable_another_exam=_detectable(difference, "another"),
        detectable_this_exam=_detectable(difference, "this") if has_seeds else None,
    )


def verdict(
    comparison: Comparison,
    *,
    baseline_name: str,
    candidate_name: str,
    adjusted_p: float | None = None,
    same_method: bool = False,
) -> Verdict:
    """What may be claimed about another exam at alpha 0.05, by the p value or `adjusted_p` (see `holm`)."""
    is_single = comparison.difference.is_about_checkpoints_only
    kind, words, p_value = _judged(comparison, (baseline_name, candidate_name), adjusted_p)
    if same_method:
        kind, words = "same_method", f"the same method (equal windows): any difference is noise; {words}"
    elif is_single:
        words = f"about these two checkpoints only (one seed): {words}"
    return Verdict(kind=kind, words=words, is_about_checkpoints_only=is_single, p_value=p_value)


def points(share: float) -> str:
    """A share as points: `2.8 points`, `1 point`."""
    text = f"{100.0 * share:.1f}".removesuffix(".0")
    return f"{text} point{'' if text in ('1', '-1') else 's'}"


def _judged(
    comparison: Comparison, names: tuple[str, str], adjusted_p: float | None
) -> tuple[VerdictKind, str, float | None]:
    known = comparison.difference.another_exam
    if known is None:
        return "not_estimable", _why_not_estimable(comparison), None
    p_value = known.p_value if adjusted_p is None else adjusted_p
    detectable = comparison.detectable_another_exam
    design = "" if detectable is None else f"; this design detects {points(rounded_up(detectable))} or more"
    if p_value < ALPHA:
        value = comparison.difference.value
        better, worse = (names[1], names[0]) if value > 0.0 else (names[0], names[1])
        low, high = sorted((abs(known.interval.low), abs(known.interval.high)))
        words = f"{better} is better than {worse} by {points(abs(value))}"
        words += f" (between {100.0 * low:.1f} and {100.0 * high:.1f})"
        return ("better" if value > 0.0 else "worse"), words, p_value
    words = f"not distinguishable{design}"
    this = comparison.difference.this_exam
    is_shown_here = this is not None and this.p_value < ALPHA and adjusted_p is None
    if is_shown_here:
        words += "; on these very problems alone the difference is more than noise"
    return "not_distinguishable", words, p_value


def _why_not_estimable(comparison: Comparison) -> str:
    if comparison.difference.num_problems < 2:
        return "nothing can be said from one problem"
    if comparison.difference.value == 0.0:
        return "no difference on any problem, so how large one could be cannot be estimated"
    return "the differences do not vary, so their uncertainty cannot be estimated"


def rounded_up(share: float) -> float:
    """A tenth of a point up, so that what is said to be detected is."""
    return math.ceil(1000.0 * share - 1e-6) / 1000.0


def _detectable(difference: CrossedMean, exam: Exam) -> float | None:
    known = difference.another_exam if exam == "another" else difference.this_exam
    if known is None:
        return None
    return minimum_detectable_difference(
        known.standard_error, known.degrees_of_freedom, alpha=ALPHA, target=POWER
    )


def _rho(difference: CrossedMean, arms: Sequence[CrossedMean], exam: Exam) -> float | None:
    """What share of the unpaired variance pairing removes."""
    known = [mean.another_exam if exam == "another" else mean.this_exam for mean in (difference, *arms)]
    paired, *unpaired = [None if item is None else item.standard_error**2 for item in known]
    if paired is None or all(item is None for item in unpaired):
        return None
    return 1.0 - paired / sum(item or 0.0 for item in unpaired)
