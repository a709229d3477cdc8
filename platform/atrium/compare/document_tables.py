"""The tables of a comparison: scores, arms, differences, planning, Pass@k, who solves what.

Scores and differences are in points (percent); an interval of a score is that for new problems.
"""

from __future__ import annotations

import re

import numpy as np

from atrium.compare.document_sentences import family_words, paper_sentences
from atrium.compare.judged_pairs import MACRO
from atrium.compare.outcomes import AT_WORDS, common_answers
from atrium.compare.run_comparison import MEASURES, ArmScores, RunsComparison
from atrium.document.document import Cell, Column, Estimate, Row, Span, Table, Value
from atrium.document.formatting import counted
from atrium.method.windows import Window
from atrium.stats.arm_pairs import MEAN, Pair
from atrium.stats.crossed import CrossedMean, interval_of
from atrium.stats.pairing import ranges_text
from atrium.stats.power import PLANNED_SEEDS
from atrium.stats.robust import interquartile_of
from atrium.stats.wording import points, rounded_up

_MOST_PAIRS = 2
"""Candidates about which a caption holds sentences; of more they would be a page."""


def _columns(*titles: str) -> tuple[Column, ...]:
    return tuple(map(Column, titles))


def _arm_row(comparison: RunsComparison, arm: ArmScores, *cells: Cell) -> Row:
    return Row((arm.arm.name, *cells), place=comparison.places[arm.arm.name])


def _measures(comparison: RunsComparison) -> tuple[str, ...]:
    return MEASURES if comparison.k > 1 else (MEAN,)


def _benchmarks(comparison: RunsComparison) -> list[str]:
    return [*comparison.benchmarks, *([MACRO] if len(comparison.benchmarks) > 1 else [])]


def _score(mean: CrossedMean, *, is_best: bool = False) -> Estimate:
    return Estimate(mean.value, interval_of(mean.another_exam), "share", is_strong=is_best)


def scores_table(comparison: RunsComparison) -> Table:
    """Each arm's scores, and how many of its runs diverged and collapsed."""
    names = [(m, benchmark) for benchmark in _benchmarks(comparison) for m in _measures(comparison)]
    scores = (f"{benchmark} {comparison.title(measure)}" for measure, benchmark in names)
    return Table(
        key="scores",
        title=f"Scores in percent, {AT_WORDS[comparison.at]}",
        columns=_columns("arm", "seeds", *scores, "diverged", "collapsed"),
        rows=tuple(
            _arm_row(
                comparison,
                arm,
                len(arm.arm.runs),
                *(_score(arm.scores[measure][benchmark]) for measure, benchmark in names),
                *arm.rates.values(),
            )
            for arm in comparison.arms
        ),
    )


def results_table(comparison: RunsComparison) -> Table:
    """Scores and differences for a paper; strong is the arm shown to be the best."""
    names = [(m, benchmark) for benchmark in _benchmarks(comparison) for m in _measures(comparison)]
    many = len(comparison.benchmarks) > 1
    titles = (f"{comparison.title(m)}, {b}" if many else comparison.title(m) for m, b in names)
    pairs: dict[str, tuple[Cell, Cell]] = {
        pair.candidate: (_difference(pair), pair.design) for pair in comparison.headline_pairs
    }
    label = re.sub(r"[^a-z0-9]+", "-", "-vs-".join(one.arm.name for one in comparison.arms).lower())
    return Table(
        key=label.strip("-")[:60].strip("-") or "comparison",
        title="Results",
        caption=_caption(comparison),
        columns=_columns("method", "seeds", *titles, f"against {comparison.arms[0].arm.name}", "compared"),
        rows=tuple(
            _arm_row(
                comparison,
                arm,
                len(arm.arm.runs),
                *(
                    _score(arm.scores[name[0]][name[1]], is_best=comparison.best[name] == arm.arm.name)
                    for name in names
                ),
                *pairs.get(arm.arm.name, (None, None)),
            )
            for arm in comparison.arms
        ),
    )


def _caption(comparison: RunsComparison) -> str:
    """What the table shows; with one or two candidates also what may be written of them."""
    title, problems = comparison.title(MEAN), sum(comparison.num_problems.values())
    pairs = comparison.headline_pairs
    together = family_words(pairs[0])
    intervals = ", with 95 % intervals for new seeds and new problems" if comparison.has_intervals else ""
    text = (
        f"{title} in percent on {' and '.join(comparison.benchmarks)} ({counted(problems, 'problem')})"
        f"{intervals}; differences are in points of {title}"
        + (f", their intervals hold {together}" if together and intervals else "")
        + (". Bold: shown to be the best of its column" if any(comparison.best.values()) else "")
        + "."
    )
    said = paper_sentences(comparison) if len(pairs) <= _MOST_PAIRS else []
    return " ".join([text, *said])


def _difference(pair: Pair) -> Estimate:
    return Estimate(pair.comparison.difference.value, pair.another_exam, "points", is_signed=True)


def arms_table(comparison: RunsComparison) -> Table:
    """Each arm's window and seeds, and what its runs cost up to the evaluations that are compared."""
    return Table(
        key="arms",
        title="Arms",
        columns=_columns("arm", "window [l, u]", "seeds", "step", "tokens generated", "training time"),
        rows=tuple(
            _arm_row(
                comparison,
                arm,
                _window(arm.arm.window),
                ranges_text(arm.arm.seeds),
                Span(*arm.steps, "count"),
                arm.num_tokens and Span(*arm.num_tokens, "count"),
                arm.wall_s and Span(*arm.wall_s, "seconds"),
            )
            for arm in comparison.arms
        ),
    )


def _window(window: Window | None) -> Cell:
    """The window [l, u]; None where the trust region is no constant window."""
    if window is None:
        return None
    return "none" if window.is_unbounded else Estimate(None, (window.lower, window.upper), "ratio")


def difference_tables(comparison: RunsComparison) -> list[Table | None]:
    """The differences, those that verdicts rest on first; then what concerns the same verdicts."""
    tables = [
        _differences_by(comparison, measure, benchmark)
        for measure in _measures(comparison)
        for benchmark in _benchmarks(comparison)[::-1]
    ]
    return [*tables, _collapsed(comparison), _over_seeds(comparison)]


def _differences_by(comparison: RunsComparison, measure: str, benchmark: str) -> Table:
    pairs = [comparison.pair(arm.arm.name, measure, benchmark) for arm in comparison.arms[1:]]
    family = pairs[0].comparison.family
    together = f"; 95 % over {family.words}" if family.words else ""
    num_problems = comparison.num_problems.get(benchmark, sum(comparison.num_problems.values()))
    titles = ("arm", "difference", "seeds", "new problems", "same problems", "p", "P(better)", "rho")
    return Table(
        key=f"differences/{measure}/{benchmark}",
        title=(
            f"{comparison.title(measure)} on {benchmark} ({counted(num_problems, 'problem')}), "
            f"points against {comparison.arms[0].arm.name}{together}"
        ),
        columns=(*_columns(*titles), Column("verdict", is_prose=True)),
        rows=tuple(
            Row(
                (
                    pair.candidate,
                    Value(pair.comparison.difference.value, "points", is_signed=True),
                    pair.design,
                    Estimate(None, pair.another_exam, "points", is_signed=True),
                    Estimate(None, pair.this_exam, "points", is_signed=True),
                    Value(pair.p_value, "p"),
                    Value(pair.comparison.improvement, "fraction"),
                    Value(pair.comparison.rho_another_exam, "fraction"),
                    pair.verdict.words,
                ),
                place=comparison.places[pair.candidate],
            )
            for pair in pairs
        ),
    )


def _collapsed(comparison: RunsComparison) -> Table | None:
    """Where runs collapsed, a mean over seeds is of two kinds of runs: their rate, and the IQM."""
    rates = {arm.arm.name: arm.collapsed for arm in comparison.arms}
    if not any(rate is not None and rate.seeds for rate in rates.values()):
        return None
    title = comparison.title(MEAN)
    return Table(
        key="collapsed",
        title="Runs that ended below their own start, in percent",
        columns=_columns(
            "arm", f"mean {title}", f"IQM {title} over seeds", "collapsed, with its exact interval"
        ),
        rows=tuple(
            _arm_row(
                comparison,
                arm,
                Value(score.value, "share"),
                Value(interquartile_of(score.value_S), "share"),
                None if arm.collapsed is None else arm.collapsed.words,
            )
            for arm in comparison.arms
            for score in [arm.scores[MEAN][comparison.headline]]
        ),
    )


def _over_seeds(comparison: RunsComparison) -> Table | None:
    """What needs many seeds and no normal distribution; nothing below the seeds that permutations need."""
    found = {pair.candidate: pair.comparison for pair in comparison.headline_pairs}
    if all(one.permutation_p is None for one in found.values()):
        return None
    titles = ("permutation p", "P(better) interval", "IQM", "IQM of baseline", "IQM difference")
    return Table(
        key="over_seeds",
        title=f"{comparison.title(MEAN)} on {comparison.headline}, over seeds alone, in percent",
        columns=_columns("arm", *titles),
        rows=tuple(
            Row(
                (
                    name,
                    Value(one.permutation_p, "p"),
                    Estimate(None, one.improvement_interval, "fraction"),
                    Value(one.iqm_candidate, "share"),
                    Value(one.iqm_baseline, "share"),
                    Estimate(None, one.iqm_difference_interval, "points", is_signed=True),
                ),
                place=comparison.places[name],
            )
            for name, one in found.items()
        ),
    )


def planning_table(comparison: RunsComparison) -> Table | None:
    """What other runs of two such arms would show; nothing from a single seed."""
    plan = comparison.plan
    if plan is None:
        return None
    return Table(
        key="planning",
        title=f"Planning other runs: the difference in {comparison.title(MEAN)} on {comparison.headline} "
        "that so many seeds per arm detect, in points",
        columns=_columns("", *map(str, PLANNED_SEEDS), f"seeds for {points(plan.effect)}"),
        rows=tuple(
            Row(
                (
                    "new problems" if exam == "another" else "same problems",
                    *(Value(rounded_up(plan.detectable[exam][num]), "points") for num in PLANNED_SEEDS),
                    plan.seeds_words(exam),
                )
            )
            for exam in plan.num_seeds
        ),
    )


def pass_at_k_table(comparison: RunsComparison) -> Table | None:
    """Pass@k at powers of two up to the samples that there are; none for one or two samples."""
    if comparison.k < 3:
        return None
    shown_k = sorted({2**power for power in range(comparison.k.bit_length())} | {comparison.k})
    return Table(
        key="pass_at_k",
        title=f"Pass@k in percent against k, {comparison.headline}",
        columns=_columns("arm", *(f"k = {k}" for k in shown_k)),
        rows=tuple(
            _arm_row(comparison, arm, *(Value(arm.pass_at[k - 1], "share") for k in shown_k))
            for arm in comparison.arms
        ),
    )


def solved_table(comparison: RunsComparison, benchmark: str) -> Table:
    """How many problems each arm solves, by as many answers for every arm, and which no other arm does."""
    by_arm = comparison.outcomes[benchmark]
    num_answers, correct = common_answers(by_arm)
    num_solving_P = (np.stack(list(correct.values())) > 0).sum(axis=0)
    is_drawn = any(sum(table.num_samples_S) > num_answers for table in by_arm.values())
    of_so_many = f", {counted(num_answers, 'answer')} of each arm, drawn by key" if is_drawn else ""
    titles = ("every answer correct", "some correct", "none correct", "solved by no other arm")
    return Table(
        key=f"solved/{benchmark}",
        title=f"Who solves what, {benchmark} ({counted(len(num_solving_P), 'problem')}{of_so_many})",
        columns=_columns("arm", *titles),
        rows=tuple(
            _arm_row(
                comparison,
                arm,
                int((correct_P == num_answers).sum()),
                int(((correct_P > 0) & (correct_P < num_answers)).sum()),
                int((correct_P == 0).sum()),
                int(((correct_P > 0) & (num_solving_P == 1)).sum()),
            )
            for arm in comparison.arms
            for correct_P in [correct[arm.arm.name]]
        ),
    )
