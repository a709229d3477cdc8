"""The figures of a comparison as data: scores and differences by arm, Pass@k, solved problems."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from atrium.compare.curves import GroupCurve
from atrium.compare.document_sentences import difference_sentence
from atrium.compare.judged_pairs import score_of
from atrium.compare.run_comparison import MEASURES, RunsComparison
from atrium.document.document import (
    Axis,
    Bounds,
    Figure,
    Grid,
    Intervals,
    Lines,
    Mark,
    Series,
)
from atrium.stats.arm_pairs import MEAN, PASS
from atrium.stats.crossed import CrossedMean, interval_of

_MOST_SENTENCES = 2
"""The largest number of sentences above a picture."""
STEPS = Axis(title="training step", unit="count")


def difference_figure(comparison: RunsComparison, measure: str = MEAN) -> Intervals:
    """Return each arm's difference from the baseline, with intervals for the same and for new problems.

    Thick lines are intervals for the same problems, and thin lines those for new problems.
    """
    pairs = [comparison.pair(arm.arm.name, measure, comparison.headline) for arm in comparison.arms[1:]]
    title = comparison.title(measure)
    meaning = "Thin: interval for new problems. Thick: for the same problems, over seeds."
    return Intervals(
        key="difference",
        title=f"Difference in {title}, {comparison.headline}",
        caption=meaning if comparison.has_intervals else "",
        x=Axis(title=f"points of {title} against {comparison.arms[0].arm.name}", unit="points"),
        rows=tuple(
            Bounds(
                name=pair.candidate,
                place=comparison.places[pair.candidate],
                value=pair.comparison.difference.value,
                outer=pair.new_seeds_and_problems,
                inner=pair.new_seeds,
            )
            for pair in pairs
        ),
        interval_names=("new problems", "same problems"),
        marks=(Mark(x=0.0),),
    )


def score_figure(comparison: RunsComparison, measures: tuple[str, ...] = MEASURES) -> Intervals:
    """Return each arm's scores with their intervals, and a dot per seed (Mean@K filled, Pass@K open)."""
    shown = [(arm, m) for arm in comparison.arms for m in measures if m == MEAN or comparison.k > 1]
    kinds = " (Mean@K filled, Pass@K open)" if len(measures) > 1 else ""
    lines = "; lines are intervals for new problems" if comparison.has_intervals else ""
    return Intervals(
        key="scores",
        title="Scores of every seed",
        caption=f"Each dot is a seed{kinds}{lines}.",
        x=Axis(title=f"percent correct, {comparison.headline}", unit="share"),
        rows=tuple(
            Bounds(
                name=f"{arm.arm.name}, {comparison.title(measure)}" if kinds else arm.arm.name,
                place=comparison.places[arm.arm.name],
                value=mean.value,
                outer=interval_of(mean.new_seeds_and_problems),
                dots=tuple(mean.value_S),
                dot_names=tuple(f"seed {seed}" for seed in arm.arm.seeds),
                is_open=measure != MEAN,
            )
            for arm, measure in shown
            for mean in [arm.scores[measure][comparison.headline]]
        ),
        interval_names=("new problems", "same problems"),
    )


def pass_at_k_figure(comparison: RunsComparison, benchmark: str | None = None) -> Lines | None:
    """Return a figure of Pass@k against k with a curve for each arm.

    The largest k is the smallest number of samples per problem of any run. Returns None if it is 1. The
    default benchmark is the headline benchmark. Bands are the intervals for new seeds and new problems.
    Dotted lines are Mean@K, whose expectation does not depend on K.
    """
    if comparison.k < 2:
        return None
    series, marks = [], []
    for arm in comparison.arms:
        place = comparison.places[arm.arm.name]
        scores = [pass_at(comparison, arm.arm.name, k, benchmark) for k in range(1, comparison.k + 1)]
        known = [
            one.new_seeds_and_problems.interval for one in scores if one.new_seeds_and_problems is not None
        ]
        low, high = zip(*known, strict=True) if len(known) == len(scores) else ((), ())
        x = tuple(float(k) for k in range(1, comparison.k + 1))
        y = tuple(one.value for one in scores)
        series.append(Series(name=arm.arm.name, place=place, x=x, y=y, low=low, high=high, has_points=True))
        marks.append(Mark(y=arm.scores[MEAN][benchmark or comparison.headline].value, place=place))
    shaded = " Shaded: interval for new problems." if comparison.has_intervals else ""
    return Lines(
        key=f"over_k/{benchmark}" if benchmark else "over_k",
        title=f"Pass@k against k, {benchmark or comparison.headline}",
        caption=f"Means over seeds; estimates are unbiased for every k. Dotted: Mean@K.{shaded}",
        x=Axis(title="samples per problem k", scale="log2"),
        y=Axis(title="problems solved by any of k samples (%)", unit="share"),
        series=tuple(series),
        marks=tuple(marks),
    )


def pass_at(comparison: RunsComparison, arm: str, k: int, benchmark: str | None = None) -> CrossedMean:
    """Return an arm's Pass@k on a benchmark, by default on the headline benchmark."""
    tables = [by_arm[arm] for name, by_arm in comparison.outcomes.items() if benchmark in (None, name)]
    return score_of(tables, PASS, k)


def grid_figure(comparison: RunsComparison, benchmark: str) -> Grid:
    """Return a heat map of the share of correct answers, by arm and problem, with the easiest problem first.

    Shares are over seeds and samples.
    """
    by_arm = comparison.outcomes[benchmark]
    share_AP = np.stack([table.mean_at_k().mean(axis=0) for table in by_arm.values()])
    order = np.argsort(-share_AP.mean(axis=0), kind="stable")
    share_AP = share_AP[:, order]
    problem_ids = next(iter(by_arm.values())).problem_ids
    return Grid(
        key=f"grid/{benchmark}",
        title=f"Solved problems, {benchmark}",
        caption="Stronger color: a larger share of answers is correct, over seeds and samples.",
        x=Axis(
            title=f"{share_AP.shape[1]} problems, easiest on the left",
            labels=tuple(problem_ids[place] for place in order),
        ),
        rows=tuple(by_arm),
        values=tuple(map(tuple, share_AP.tolist())),
        ends=("none", "all correct"),
    )


def reward_figure(comparison: RunsComparison, rewards: Mapping[str, GroupCurve | None]) -> Lines | None:
    """Return each arm's mean reward by step, with the range over its seeds, or None without rewards."""
    series = tuple(
        Series(
            name=name,
            place=comparison.places[name],
            x=tuple(mean.x.tolist()),
            y=tuple(mean.mean.tolist()),
            low=() if mean.low is None else tuple(mean.low.tolist()),
            high=() if mean.high is None else tuple(mean.high.tolist()),
        )
        for name, mean in rewards.items()
        if mean is not None
    )
    if not series:
        return None
    return Lines(
        key="rewards",
        title="Training reward by step",
        caption="Means over seeds. Shaded: range over seeds.",
        x=STEPS,
        y=Axis(title="mean reward"),
        series=series,
    )


def picture(
    comparison: RunsComparison, rewards: Mapping[str, GroupCurve | None]
) -> tuple[str, tuple[Figure, ...]]:
    """Return the title of a picture of the comparison, and the picture's figures.

    With one or two candidates, the title consists of the sentences on their differences from the baseline.
    With more, it states only the number of candidates and the baseline.
    """
    sentences = [difference_sentence(comparison, pair) for pair in comparison.headline_pairs]
    if len(sentences) > _MOST_SENTENCES:
        sentences = [f"{len(sentences)} methods against {comparison.arms[0].arm.name}"]
    figures = (reward_figure(comparison, rewards), score_figure(comparison, (MEAN,)))
    return "\n".join(sentences), tuple(figure for figure in figures if figure is not None)
