"""A comparison as tables of text, and the sentences that belong to them.

The terminal, the HTML page, Markdown and LaTeX show the same cells. Scores and differences are in points
(percent); an interval of a score is that for another exam.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atrium.compare.arm_pairs import MACRO, MEAN, Pair
from atrium.compare.confounds import confound_lines, environment_lines, shared_lines
from atrium.compare.counted_runs import left_out_words
from atrium.compare.outcomes import AT_WORDS, common_answers
from atrium.compare.run_comparison import MEASURES, ArmScores, RunsComparison
from atrium.compare.verdicts import points, rounded_up, signed
from atrium.document.formatting import counted
from atrium.method.windows import Window
from atrium.stats.crossed import CrossedMean, interval_of
from atrium.stats.estimates import Interval
from atrium.stats.pairing import ranges_text
from atrium.stats.power import PLANNED_SEEDS
from atrium.stats.robust import interquartile_of

NOTHING = "–"
EQUAL_WINDOWS = "their windows [l, u] are equal"
INTERVALS = (
    "Intervals are 95 %. Another exam: new seeds and new problems of the same kind; seeds are a random "
    "factor crossed with problems. This exam: new seeds, the same problems.",
)
READING = (
    "A verdict is read off the interval for another exam: it names a difference where 0 lies outside. "
    "Arms with one or two seeds are not judged. If several arms or benchmarks are compared, intervals hold "
    "together; the method is stated above each table.",
    "Seeds are paired by number if at least three, and two thirds of each arm, are common; otherwise all "
    "runs of one arm are compared with all runs of the other.",
    "rho: what pairing by seed and problem makes use of; it multiplies the standard error by sqrt(1 - rho).",
    "P(better): the probability that a run of the arm scores higher than one of the baseline; from 10 seeds.",
    "Over seeds alone: interquartile means (IQM) need 4 seeds, sign permutations 6, bootstraps 10. Of 4 to 7 "
    "seeds an IQM leaves out the best and the worst, and so a single collapse.",
    "p: the least alpha at which the interval for another exam leaves out 0.",
    "Planning: what other runs would show, from how seeds and problems vary here (not from the difference), "
    "with power 0.8 and assurance 0.8 at alpha 0.05. Seeds added to these after a look need fresh data, or a "
    "sequential bound.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table of text; the first column names the row, the others hold numbers, the last may hold words."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def report_tables(comparison: RunsComparison) -> tuple[ReportTable, ...]:
    """The table of scores, then the differences: those that verdicts rest on first."""
    differences = [
        _differences(comparison, measure, benchmark)
        for measure in _measures(comparison)
        for benchmark in _columns(comparison)[::-1]
    ]
    return (
        _scores(comparison),
        _design(comparison),
        *differences,
        *_collapsed(comparison),
        *_over_seeds(comparison),
        *_planning(comparison),
        *_over_k(comparison),
        *(_solved(comparison, benchmark) for benchmark in comparison.benchmarks),
    )


def verdict_lines(comparison: RunsComparison) -> list[str]:
    """A sentence per candidate, on Mean@K of the macro average or the only benchmark; and the best arm."""
    lines = [
        f"{pair.candidate} against {pair.baseline}: {pair.verdict.words} ({pair.design})"
        for pair in (headline_pair(comparison, arm) for arm in comparison.arms[1:])
    ]
    return [line for line in (*lines, best_line(comparison), plan_line(comparison)) if line]


def plan_line(comparison: RunsComparison) -> str:
    """How the number of seeds was planned; empty where no verdict is given and none is planned."""
    kinds = {pair.verdict.kind for pair in comparison.pairs}
    is_judged = bool(kinds & {"better", "worse", "not_distinguishable", "depends_on_diverged"})
    return comparison.planned.words() if is_judged or comparison.planned.plan is not None else ""


def best_line(comparison: RunsComparison) -> str:
    """Which of several arms is shown to be the best by what verdicts rest on; empty for two arms."""
    if len(comparison.arms) < 3:
        return ""
    best = comparison.best[MEAN, comparison.headline]
    where = f"{comparison.title(MEAN)} on {comparison.headline}"
    if best is None:
        return f"no arm is shown to be the best by {where}"
    return f"{best} is shown to be the best by {where}: its intervals against all other arms lie above 0"


def top_lines(comparison: RunsComparison) -> list[str]:
    """The lines at the top in every medium: confounds, then other versions and machines."""
    return [*confound_lines(comparison.confounds), *environment_lines(comparison.environment)]


def headline_pair(comparison: RunsComparison, arm: ArmScores) -> Pair:
    """The pair that the verdict on an arm rests on."""
    return comparison.pair(arm.arm.name, MEAN, comparison.headline)


def note_lines(comparison: RunsComparison) -> list[str]:
    """What a reader has to know about these runs: same methods, single seeds, what was left out."""
    lines = [
        f"{' and '.join(names)} are the same method: {EQUAL_WINDOWS}" for names in comparison.same_methods
    ]
    single = [arm.arm.name for arm in comparison.arms if len(arm.arm.runs) == 1]
    if single:
        lines.append(f"one seed ({', '.join(single)}): not judged, and no interval for new seeds is known")
    left_out = left_out_words(comparison.left_out)
    return [
        *([left_out] if left_out else []),
        *lines,
        *comparison.notes,
        *shared_lines(comparison.environment),
    ]


def reading_lines(comparison: RunsComparison) -> tuple[str, ...]:
    """How to read the tables."""
    return (*(INTERVALS if comparison.has_intervals else ()), *READING)


def interval_text(interval: Interval | None, *, is_signed: bool) -> str:
    """`[30.1, 38.3]`, or `[-0.3, +4.5]` for differences."""
    if interval is None:
        return NOTHING
    low, high = interval
    if is_signed:
        return f"[{signed(low)}, {signed(high)}]"
    return f"[{100.0 * low:.1f}, {100.0 * high:.1f}]"


def window_text(window: Window | None) -> str:
    """`[0.800, 1.231]`, or a dash where the trust region is no constant window."""
    if window is None:
        return NOTHING
    return "none" if window.is_unbounded else f"[{window.lower:.3f}, {window.upper:.3f}]"


def _columns(comparison: RunsComparison) -> list[str]:
    return [*comparison.benchmarks, *([MACRO] if len(comparison.benchmarks) > 1 else [])]


def _measures(comparison: RunsComparison) -> tuple[str, ...]:
    return MEASURES if comparison.k > 1 else (MEAN,)


def _scores(comparison: RunsComparison) -> ReportTable:
    names = [(measure, benchmark) for benchmark in _columns(comparison) for measure in _measures(comparison)]
    return ReportTable(
        title=f"Scores in percent, {AT_WORDS[comparison.at]}",
        columns=(
            "arm",
            "seeds",
            *(f"{name} {comparison.title(measure)}" for measure, name in names),
            "diverged",
            "collapsed",
        ),
        rows=tuple(
            (
                arm.arm.name,
                str(len(arm.arm.runs)),
                *(_score(arm.scores[m][name]) for m, name in names),
                *arm.rates.values(),
            )
            for arm in comparison.arms
        ),
    )


def _score(mean: CrossedMean) -> str:
    text = f"{100.0 * mean.value:.1f}"
    interval = interval_of(mean.another_exam)
    return text if interval is None else f"{text} {interval_text(interval, is_signed=False)}"


def _design(comparison: RunsComparison) -> ReportTable:
    return ReportTable(
        title="Arms",
        columns=("arm", "window [l, u]", "seeds", "step", "tokens generated", "training time, s"),
        rows=tuple(
            (
                arm.arm.name,
                window_text(arm.arm.window),
                ranges_text(arm.arm.seeds),
                _span_text(arm.steps),
                _span_text(arm.num_tokens),
                _span_text(arm.wall_s),
            )
            for arm in comparison.arms
        ),
    )


def _differences(comparison: RunsComparison, measure: str, benchmark: str) -> ReportTable:
    baseline = comparison.arms[0].arm.name
    first = comparison.pair(comparison.arms[1].arm.name, measure, benchmark).comparison.family
    together = f"; 95 % over {first.words}" if first.words else ""
    num_problems = comparison.num_problems.get(benchmark, sum(comparison.num_problems.values()))
    return ReportTable(
        title=(
            f"{comparison.title(measure)} on {benchmark} ({counted(num_problems, 'problem')}), "
            f"points against {baseline}{together}"
        ),
        columns=(
            "arm",
            "difference",
            "seeds",
            "another exam",
            "this exam",
            "p",
            "P(better)",
            "rho",
            "verdict",
        ),
        rows=tuple(
            _difference_row(comparison.pair(arm.arm.name, measure, benchmark)) for arm in comparison.arms[1:]
        ),
    )


def _difference_row(pair: Pair) -> tuple[str, ...]:
    found = pair.comparison
    difference = found.difference
    p_value = pair.p_value
    return (
        pair.candidate,
        signed(difference.value),
        pair.design,
        interval_text(pair.another_exam, is_signed=True),
        interval_text(pair.this_exam, is_signed=True),
        NOTHING if p_value is None else "<0.001" if p_value < 0.001 else f"{p_value:.3f}",
        _decimal(found.improvement),
        _decimal(found.rho_another_exam),
        pair.verdict.words,
    )


def _collapsed(comparison: RunsComparison) -> list[ReportTable]:
    """Where runs collapsed, a mean over seeds is of two kinds of runs: their rate, and the IQM."""
    rates = {arm.arm.name: arm.collapsed for arm in comparison.arms}
    if not any(rate is not None and rate.seeds for rate in rates.values()):
        return []
    title = comparison.title(MEAN)
    return [
        ReportTable(
            title="Runs that ended below their own start",
            columns=("arm", f"mean {title}", f"IQM {title} over seeds", "collapsed, with its exact interval"),
            rows=tuple(
                (
                    arm.arm.name,
                    _percent(score.value),
                    _percent(interquartile_of(score.value_S)),
                    NOTHING if arm.collapsed is None else arm.collapsed.words,
                )
                for arm in comparison.arms
                for score in [arm.scores[MEAN][comparison.headline]]
            ),
        )
    ]


def _planning(comparison: RunsComparison) -> list[ReportTable]:
    """What other runs of two such arms would show; nothing from a single seed."""
    plan = comparison.plan
    if plan is None:
        return []
    return [
        ReportTable(
            title=f"Planning other runs: the difference in {comparison.title(MEAN)} on {comparison.headline} "
            "that so many seeds per arm detect, in points",
            columns=("", *map(str, PLANNED_SEEDS), f"seeds for {points(plan.effect)}"),
            rows=tuple(
                (
                    f"{exam} exam",
                    *(f"{100 * rounded_up(plan.detectable[exam][num]):.1f}" for num in PLANNED_SEEDS),
                    plan.seeds_words(exam),
                )
                for exam in plan.num_seeds
            ),
        )
    ]


def _over_seeds(comparison: RunsComparison) -> list[ReportTable]:
    """What needs many seeds and no normal distribution; nothing below the seeds that permutations need."""
    found = {arm.arm.name: headline_pair(comparison, arm).comparison for arm in comparison.arms[1:]}
    if all(one.permutation_p is None for one in found.values()):
        return []
    return [
        ReportTable(
            title=f"{comparison.title(MEAN)} on {comparison.headline}, over seeds alone",
            columns=(
                "arm",
                "permutation p",
                "P(better) interval",
                "IQM",
                "IQM of baseline",
                "IQM difference",
            ),
            rows=tuple(
                (
                    name,
                    NOTHING if one.permutation_p is None else f"{one.permutation_p:.3f}",
                    _bounds(one.improvement_interval, 1.0),
                    _percent(one.iqm_candidate),
                    _percent(one.iqm_baseline),
                    _bounds(one.iqm_difference_interval, 100.0),
                )
                for name, one in found.items()
            ),
        )
    ]


def _over_k(comparison: RunsComparison) -> list[ReportTable]:
    """Pass@k at powers of two up to the samples that there are; none for one or two samples."""
    if comparison.k < 3:
        return []
    shown_k = sorted({2**power for power in range(comparison.k.bit_length())} | {comparison.k})
    return [
        ReportTable(
            title=f"Pass@k in percent against k, {comparison.headline}",
            columns=("arm", *(f"k = {k}" for k in shown_k)),
            rows=tuple(
                (arm.arm.name, *(_percent(arm.pass_at[k - 1]) for k in shown_k)) for arm in comparison.arms
            ),
        )
    ]


def _solved(comparison: RunsComparison, benchmark: str) -> ReportTable:
    """How many problems each arm solves, by as many answers for every arm, and which no other arm does."""
    by_arm = comparison.outcomes[benchmark]
    num_answers, correct = common_answers(by_arm)
    correct_AP = np.stack(list(correct.values()))
    num_solving_P = (correct_AP > 0).sum(axis=0)
    is_drawn = any(sum(table.num_samples_S) > num_answers for table in by_arm.values())
    of_so_many = f", {counted(num_answers, 'answer')} of each arm, drawn by key" if is_drawn else ""
    return ReportTable(
        title=f"Who solves what, {benchmark} ({counted(correct_AP.shape[1], 'problem')}{of_so_many})",
        columns=("arm", "every answer correct", "some correct", "none correct", "solved by no other arm"),
        rows=tuple(
            (
                name,
                str(int((correct_P == num_answers).sum())),
                str(int(((correct_P > 0) & (correct_P < num_answers)).sum())),
                str(int((correct_P == 0).sum())),
                str(int(((correct_P > 0) & (num_solving_P == 1)).sum())),
            )
            for name, correct_P in correct.items()
        ),
    )


def _bounds(bounds: Interval | None, scale: float) -> str:
    if bounds is None:
        return NOTHING
    low, high = (f"{scale * end:.2f}" if scale == 1.0 else signed(end) for end in bounds)
    return f"[{low}, {high}]"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100.0 * value:.1f}"


def _decimal(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _span_text(span: tuple[float, float] | None) -> str:
    if span is None:
        return NOTHING
    low, high = (f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}" for value in span)
    return low if low == high else f"{low} to {high}"
