"""Simulate how often the intervals of an evaluation contain the true value, and how wide they are.

Each cell draws exams whose problems have a known distribution of difficulty, and evaluates them. The interval
over problems should contain the mean over all such problems; the sampling interval should contain the true
value of the drawn exam. Widths are ratios to the plain t interval of the same data (unless its width is 0)
and, for one sample per problem or equally hard problems, to Clopper and Pearson's exact interval.

`--json` prints one JSON line per cell; the default output is the worst cells, and quartiles of the widths.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import beta, norm, t

from atrium.stats.estimates import (
    Interval,
    interval_over_problems,
    mean_at_k,
    pass_at_k,
    pass_hat_k,
    sampling_interval,
)

Values = NDArray[np.float64]
CONFIDENCE = 0.95
NUM_PROBLEMS = (30, 192, 500)
NUM_SAMPLES = (1, 4, 8, 32, 64)
MEANS = (0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 0.99)


class Family(NamedTuple):
    """A distribution of problem difficulty: the probability of a correct sample at each quantile."""

    name: str
    probability_at: Callable[[Values], Values]
    is_equal: bool = False
    """Whether all problems are equally hard, so that outcomes are binomial."""


class Metric(NamedTuple):
    """A metric: its estimate per problem from correct counts, and its true value from probabilities."""

    name: str
    k: int
    estimate: Callable[[NDArray[np.int64], int], Values]
    truth: Callable[[Values], Values]


class Cell(NamedTuple):
    """A simulated design: family of problems, metric, and numbers of problems and samples."""

    family: Family
    metric: Metric
    num_problems: int
    num_samples: int


def families() -> list[Family]:
    """Return beta distributions, a logit-normal of mean 0.05, two-point distributions, and constants."""
    shapes = [(0.4, 0.6), (0.1, 0.9), (0.02, 0.98), (2.0, 0.2)]
    return [
        *(Family(f"beta{shape}", lambda u, s=shape: beta.ppf(u, *s)) for shape in shapes),
        # The location, found by numerical integration, gives a mean of 0.05.
        Family("logit-normal(.05, 2)", lambda u: expit(-4.4225 + 2.0 * norm.ppf(u))),
        *(
            Family(f"two points, {share:g} at .9", lambda u, s=share: np.where(u < s, 0.9, 0.02))
            for share in (0.02, 0.1, 0.5, 0.9, 0.98)
        ),
        *(
            Family(f"all equal {mean:g}", lambda u, m=mean: np.full_like(u, m), is_equal=True)
            for mean in MEANS
        ),
    ]


def metrics() -> list[Metric]:
    """Return the metrics Mean@K, Pass@4, Pass@8 and Pass^4."""
    return [
        Metric("Mean@K", 1, mean_at_k, lambda p: p),
        *(
            Metric(
                f"Pass@{k}", k, lambda c, n, k=k: pass_at_k(c, n)[:, k - 1], lambda p, k=k: 1 - (1 - p) ** k
            )
            for k in (4, 8)
        ),
        Metric("Pass^4", 4, lambda c, n: pass_hat_k(c, n)[:, 3], lambda p: p**4),
    ]


def cells() -> Iterator[Cell]:
    """Yield all designs with enough samples for the metric."""
    for family, metric, num_problems, num_samples in product(
        families(), metrics(), NUM_PROBLEMS, NUM_SAMPLES
    ):
        if metric.k <= num_samples:
            yield Cell(family, metric, num_problems, num_samples)


def measure(cell: Cell, repetitions: int, seed: int = 0) -> dict[str, object]:
    """Return the coverage and width of both intervals in one design."""
    rng = np.random.default_rng([seed, *map(ord, cell.family.name), cell.num_problems, cell.num_samples])
    of_all = float(cell.metric.truth(cell.family.probability_at((np.arange(200_000) + 0.5) / 200_000)).mean())
    over, again, ratios_to_t, ratios_to_exact = [], [], [], []
    for _ in range(repetitions):
        probability_P = cell.family.probability_at(rng.random(cell.num_problems))
        num_correct_P = rng.binomial(cell.num_samples, probability_P)
        value_P = cell.metric.estimate(num_correct_P, cell.num_samples)
        interval = interval_over_problems(value_P, CONFIDENCE)
        assert interval is not None
        over.append(interval.low <= of_all <= interval.high)
        plain = t_interval(value_P)
        if width(plain) > 1e-6:
            ratios_to_t.append(width(interval) / width(plain))
        if cell.num_samples == 1:
            exact = exact_interval(int(num_correct_P.sum()), cell.num_problems)
            ratios_to_exact.append(width(interval) / width(exact))
        sampled = sampling_interval_of(cell, num_correct_P)
        if sampled is not None:
            again.append(sampled.low <= float(cell.metric.truth(probability_P).mean()) <= sampled.high)
            if cell.family.is_equal and cell.metric.k == 1:
                exact = exact_interval(int(num_correct_P.sum()), cell.num_problems * cell.num_samples)
                ratios_to_exact.append(width(sampled) / width(exact))
    return {
        "family": cell.family.name,
        "metric": cell.metric.name,
        "n": cell.num_problems,
        "K": cell.num_samples,
        "value": round(of_all, 4),
        "over_problems": float(np.mean(over)),
        "sampling": float(np.mean(again)) if again else None,
        "width_to_t": float(np.median(ratios_to_t)) if ratios_to_t else None,
        "width_to_exact": float(np.median(ratios_to_exact)) if ratios_to_exact else None,
    }


def sampling_interval_of(cell: Cell, num_correct_P: NDArray[np.int64]) -> Interval | None:
    """Return the metric's sampling interval, or None if it is undefined.

    Pass^k is 1 minus the Pass@k of wrong answers, so its interval follows from the one of this Pass@k.
    """
    if cell.metric.name.startswith("Pass^"):
        flipped = sampling_interval(
            cell.num_samples - num_correct_P, cell.num_samples, cell.metric.k, CONFIDENCE
        )
        return None if flipped is None else Interval(1.0 - flipped.high, 1.0 - flipped.low)
    return sampling_interval(num_correct_P, cell.num_samples, cell.metric.k, CONFIDENCE)


def t_interval(value_P: Values) -> Interval:
    """Return the plain t interval of the values, clipped to [0, 1]."""
    margin = t.ppf((1 + CONFIDENCE) / 2, len(value_P) - 1) * value_P.std(ddof=1) / len(value_P) ** 0.5
    return Interval(max(value_P.mean() - margin, 0.0), min(value_P.mean() + margin, 1.0))


def exact_interval(num_correct: int, num_trials: int) -> Interval:
    """Return Clopper and Pearson's interval for a binomial proportion."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if num_correct == 0 else beta.ppf(tail, num_correct, num_trials - num_correct + 1)
    high = 1.0 if num_correct == num_trials else beta.ppf(1 - tail, num_correct + 1, num_trials - num_correct)
    return Interval(float(low), float(high))


def width(interval: Interval) -> float:
    """Return the width of an interval."""
    return interval.high - interval.low


def main() -> None:
    """Measure the cells and print the worst coverages and the quartiles of the widths."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--repetitions", type=int, default=1000, help="simulated exams per cell (default %(default)s)"
    )
    options.add_argument("--every", type=int, default=1, help="measure every n-th cell only")
    options.add_argument("--json", action="store_true", help="one JSON line per cell")
    args = options.parse_args()
    found = []
    for cell in list(cells())[:: args.every]:
        found.append(measure(cell, args.repetitions))
        if args.json:
            print(json.dumps(found[-1]), flush=True)
    if args.json:
        return
    error = (0.95 * 0.05 / args.repetitions) ** 0.5
    print(
        f"{len(found)} cells of {args.repetitions} exams; standard error of a coverage of 95 %: {error:.1%}"
    )
    for kind in ("over_problems", "sampling"):
        known = sorted((row for row in found if row[kind] is not None), key=lambda row: row[kind])
        print(f"\n{kind}: least {known[0][kind]:.1%}, median {known[len(known) // 2][kind]:.1%}; the worst:")
        for row in known[:5]:
            print(
                f"  {row[kind]:.1%}  {row['metric']} of {row['value']:.3g}, n {row['n']}, K {row['K']}, "
                f"{row['family']}"
            )
    for ratio in ("width_to_t", "width_to_exact"):
        known_ratios = [row[ratio] for row in found if row[ratio] is not None]
        quartiles = np.quantile(known_ratios, (0.25, 0.5, 0.75, 1.0))
        print(f"\n{ratio}: quartiles and largest " + ", ".join(f"{value:.2f}" for value in quartiles))


if __name__ == "__main__":
    main()
