"""The mean of outcomes that seeds and problems both decide, with an interval for each of two questions.

`value_SP[s, p]` is what the run with seed s did on problem p: a share correct, or the difference of two
arms' shares (see `paired`). Every seed answers every problem, so seeds are a random factor *crossed* with
problems. They are never a stratum: with seeds held fixed, an interval says what these very checkpoints
would do, and a claim about methods needs more.

*Another exam*: new seeds and new problems of the same kind. With the mean squares of the two-way table,
SE^2 = max(MS_seed + MS_problem - MS_resid, MS_seed, MS_problem) / (S P), and Satterthwaite's degrees of
freedom. *This exam*: new seeds, the same problems: t over the means of the seeds, S - 1 degrees of freedom.
Of the two, another exam is never the narrower: where Satterthwaite's t would make it so, it takes the other's
standard error and degrees of freedom. With that, 95 % intervals cover 94.2 to 97.8 % from 3 seeds on where
seeds vary (up to 98.7 % where they do not); without it, 3 seeds cover as little as 92 %.
One seed supports a claim about its checkpoint only: another exam is then t over problems, this exam the
noise of sampling.

Several benchmarks count equally, whatever their sizes. Seeds are shared by them, problems are not; with one
benchmark the formulas reduce to those above. Pure functions; nothing here draws.

Sources: mean squares and their expectations for a two-way table without replication, Scheffe 1959, ch. 7;
degrees of freedom of a sum of mean squares, Satterthwaite 1946.

Axes: S seeds, P problems, B benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

Values = NDArray[np.float64]


class Bounds(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


DIFFERENCES = Bounds(-1.0, 1.0)
"""Where differences of shares lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """How well a mean is known: SE > 0, degrees of freedom, interval, two-sided p value of no difference."""

    standard_error: float
    degrees_of_freedom: float
    interval: Bounds
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """What a mean over S seeds on an exam of this size varies by: seed / S + problem + residual / S.

    `seed` is the variance of one seed's mean that all problems share, `problem` that of the exam's mean
    over the choice of its problems, `residual` what seeds and problems (and sampling) do together, on an
    exam of this size. None is negative. `problem_degrees_of_freedom` is Satterthwaite's over benchmarks,
    P - 1 for one.
    """

    seed: float
    problem: float
    residual: float
    problem_degrees_of_freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedMean:
    """A mean over benchmarks of means over seeds and problems.

    `value_S` are the seeds' means. An uncertainty is None where it cannot be estimated: fewer than two
    problems in some benchmark, one seed and no `SamplingNoise`, or values that do not vary at all, from
    which t would claim certainty. `components` is None for one seed or fewer than two problems.
    """

    value: float
    value_S: tuple[float, ...]
    num_problems: int
    another_exam: Uncertainty | None
    this_exam: Uncertainty | None
    components: VarianceComponents | None

    @property
    def num_seeds(self) -> int:
        """How many seeds the mean is over."""
        return len(self.value_S)

    @property
    def is_about_checkpoints_only(self) -> bool:
        """Whether there is one seed, so that nothing is known about other runs of the same method."""
        return len(self.value_S) == 1


class SamplingNoise(NamedTuple):
    """The variance of a mean over repeated sampling from the same checkpoints, and how well it is known."""

    variance: float
    degrees_of_freedom: float


class _Squares(NamedTuple):
    """Estimated variances of the mean: by seeds, by problems, by their residual; the last two [B]."""

    by_seed: float
    by_problem_B: Values
    by_residual_B: Values
    num_seeds: int
    num_problems_B: Values


def crossed_mean(
    values_by_benchmark: Sequence[ArrayLike],
    *,
    limits: Bounds = DIFFERENCES,
    confidence: float = 0.95,
    sampling: SamplingNoise | None = None,
) -> CrossedMean:
    """The mean of `value_SP` arrays, one per benchmark and all with the same seeds in the same order.

    Intervals are cut to `limits`. `sampling` serves this exam where there is one seed. Raises `ValueError`
    for values that are not finite, or arrays that are empty or differ in their seeds.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence lies strictly between 0 and 1, not {confidence}")
    value_SP_B = _checked(values_by_benchmark)
    value_S = np.mean([value_SP.mean(axis=1) for value_SP in value_SP_B], axis=0)
    value = float(value_S.mean())
    squares = _squares(value_SP_B, value_S)
    this_exam = another_exam = None
    if squares.num_seeds > 1:
        this_exam = (squares.by_seed, squares.num_seeds - 1.0)
    elif sampling is not None:
        this_exam = sampling
    if squares.num_problems_B.min() > 1:
        another_exam = _variance_of_another_exam(squares)
    if this_exam and another_exam and squares.num_seeds > 1:
        another_exam = max(another_exam, this_exam, key=lambda known: _margin(known, confidence))
    return CrossedMean(
        value=value,
        value_S=tuple(value_S.tolist()),
        num_problems=int(squares.num_problems_B.sum()),
        another_exam=_uncertainty(value, another_exam, limits, confidence),
        this_exam=_uncertainty(value, this_exam, limits, confidence),
        components=_components(squares),
    )


def sampling_noise(
    num_correct_by_benchmark: Sequence[ArrayLike], num_samples_by_benchmark: Sequence[int]
) -> SamplingNoise | None:
    """The noise of a macro-averaged Mean@K from counts [S, P] out of K samples; None unless all K >= 2.

    Each cell has the unbiased variance p (1 - p) / (K - 1). For a difference of arms, add both variances.
    """
    if min(num_samples_by_benchmark) < 2:
        return None
    total = squared = 0.0
    for count_SP, num_samples in zip(num_correct_by_benchmark, num_samples_by_benchmark, strict=True):
        share_SP = np.asarray(count_SP, dtype=np.float64) / num_samples
        weight = 1.0 / (share_SP.size * len(num_samples_by_benchmark))
        variance_SP = weight**2 * share_SP * (1.0 - share_SP) / (num_samples - 1)
        total += float(variance_SP.sum())
        squared += float((variance_SP**2).sum()) / (num_samples - 1)
    return SamplingNoise(total, total**2 / squared) if squared > 0.0 else None


def t_quantile(share: float, degrees_of_freedom: float) -> float:
    """The quantile of Student's t."""
    return float(stdtrit(degrees_of_freedom, share))


def _checked(values_by_benchmark: Sequence[ArrayLike]) -> list[Values]:
    value_SP_B = [np.asarray(values, dtype=np.float64) for values in values_by_benchmark]
    if not value_SP_B or any(value_SP.ndim != 2 or not value_SP.size for value_SP in value_SP_B):
        raise ValueError("each benchmark needs values [S, P] for at least one seed and one problem")
    if len({len(value_SP) for value_SP in value_SP_B}) > 1:
        raise ValueError("all benchmarks need the same seeds")
    if not all(np.isfinite(value_SP).all() for value_SP in value_SP_B):
        raise ValueError("values must be finite")
    return value_SP_B


def _squares(value_SP_B: list[Values], value_S: Values) -> _Squares:
    """Mean squares, divided by S P (and B^2), so that each is a variance of the macro average."""
    num_seeds, num_benchmarks = len(value_S), len(value_SP_B)
    num_problems_B = np.array([value_SP.shape[1] for value_SP in value_SP_B], dtype=np.float64)
    by_problem_B, by_residual_B = np.zeros(num_benchmarks), np.zeros(num_benchmarks)
    for benchmark, value_SP in enumerate(value_SP_B):
        num_problems = value_SP.shape[1]
        if num_problems < 2:
            continue
        value_P = value_SP.mean(axis=0)
        by_problem_B[benchmark] = value_P.var(ddof=1) / num_problems
        if num_seeds > 1:
            residual_SP = value_SP - value_P - value_SP.mean(axis=1, keepdims=True) + value_SP.mean()
            mean_square = float((residual_SP**2).sum()) / ((num_seeds - 1) * (num_problems - 1))
            by_residual_B[benchmark] = mean_square / (num_seeds * num_problems)
    by_seed = float(value_S.var(ddof=1)) / num_seeds if num_seeds > 1 else 0.0
    scale = num_benchmarks**2
    return _Squares(by_seed, by_problem_B / scale, by_residual_B / scale, num_seeds, num_problems_B)


def _variance_of_another_exam(squares: _Squares) -> tuple[float, float]:
    """The variance and its degrees of freedom, of the largest of the three estimates."""
    by_seed, by_problem, by_residual = (
        squares.by_seed,
        squares.by_problem_B.sum(),
        squares.by_residual_B.sum(),
    )
    if by_problem >= by_residual and by_seed >= by_residual and squares.num_seeds > 1:
        total = by_seed + by_problem - by_residual
        df_P_B = squares.num_problems_B - 1.0
        df_S = squares.num_seeds - 1.0
        spread = (
            by_seed**2 / df_S
            + (squares.by_problem_B**2 / df_P_B).sum()
            + (squares.by_residual_B**2 / (df_S * df_P_B)).sum()
        )
        return float(total), float(total**2 / spread) if spread > 0.0 else 1.0
    if by_seed > by_problem:
        return by_seed, squares.num_seeds - 1.0
    return float(by_problem), _degrees_over_benchmarks(squares)


def _degrees_over_benchmarks(squares: _Squares) -> float:
    spread = float((squares.by_problem_B**2 / np.maximum(squares.num_problems_B - 1.0, 1.0)).sum())
    return float(squares.by_problem_B.sum()) ** 2 / spread if spread > 0.0 else 1.0


def _components(squares: _Squares) -> VarianceComponents | None:
    if squares.num_seeds < 2 or squares.num_problems_B.min() < 2:
        return None
    by_residual = float(squares.by_residual_B.sum())
    return VarianceComponents(
        seed=squares.num_seeds * max(squares.by_seed - by_residual, 0.0),
        problem=max(float(squares.by_problem_B.sum()) - by_residual, 0.0),
        residual=squares.num_seeds * by_residual,
        problem_degrees_of_freedom=_degrees_over_benchmarks(squares),
    )


def _margin(known: tuple[float, float], confidence: float) -> float:
    """Half of an interval's width, from a variance and its degrees of freedom."""
    return t_quantile(0.5 + confidence / 2.0, known[1]) * float(known[0] ** 0.5)


def _uncertainty(
    value: float, known: tuple[float, float] | None, limits: Bounds, confidence: float
) -> Uncertainty | None:
    # Sums of equal values differ in their last bits, which is no spread.
    if known is None or known[0] <= 1e-24:
        return None
    variance, degrees_of_freedom = known
    standard_error, margin = variance**0.5, _margin(known, confidence)
    return Uncertainty(
        standard_error=standard_error,
        degrees_of_freedom=degrees_of_freedom,
        interval=Bounds(max(value - margin, limits.low), min(value + margin, limits.high)),
        p_value=float(2.0 * stdtr(degrees_of_freedom, -abs(value) / standard_error)),
    )
