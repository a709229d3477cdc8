"""The tables of a comparison: scores, arms, differences, planning, Pass@k, solved problems.

Scores are in percent, and differences in percentage points. Intervals of scores are for new seeds and new
problems.
"""

from __future__ import annotations

import re

import numpy as np

from atrium.compare.arm_names import ALGORITHM, LABEL
from atrium.compare.arms import Arm
from atrium.compare.document_figures import pass_at
from atrium.compare.judged_pairs import MACRO
from atrium.compare.outcomes import AT_WORDS, common_answers
from atrium.compare.run_comparison import MEASURES, ArmScores, RunsComparison
from atrium.compare.run_settings import ABSENT
from atrium.document.document import Cell, Column, Estimate, Row, Span, Table, Value, plain_table
from atrium.document.formatting import counted
from atrium.method.windows import Window
from atrium.stats.arm_pairs import MEAN, Pair
from atrium.stats.crossed import CrossedMean, interval_of
from atrium.stats.pairing import ranges_text
from atrium.stats.power import PLANNED_SEEDS
from atrium.stats.robust import interquartile_of
from atrium.stats.wording import points, rounded_up

_ACRONYM = 5
"""The largest number of letters of a word that counts as an acronym."""
_SPELLINGS = {
    "asymre": "AsymRE",
    "cov": "Cov",
    "dr": "Dr.",
    "icepop": "IcePop",
    "kpop": "KPop",
    "minirl": "MiniRL",
    "reinforce": "REINFORCE",
    **{word: word.capitalize() for word in ("clip", "dual", "kimi", "lite", "pass", "prime")},
    **{word: word for word in ("at", "gate", "group", "k", "mask", "plus", "top")},
}
"""Spellings of words in the names of shipped algorithms that are not acronyms."""


def _arm_row(comparison: RunsComparison, arm: ArmScores, *cells: Cell) -> Row:
    return Row((arm.arm.name, *cells), place=comparison.places[arm.arm.name])


def _measures(comparison: RunsComparison) -> tuple[str, ...]:
    return MEASURES if comparison.k > 1 else (MEAN,)


def _benchmarks(comparison: RunsComparison) -> list[str]:
    return [*comparison.benchmarks, *([MACRO] if len(comparison.benchmarks) > 1 else [])]


def _score(mean: CrossedMean, *, is_best: bool = False) -> Estimate:
    return Estimate(mean.value, interval_of(mean.new_seeds_and_problems), "share", is_strong=is_best)


def scores_table(comparison: RunsComparison) -> Table:
    """Return each arm's scores, and how many of its runs diverged and collapsed."""
    names = [(m, benchmark) for benchmark in _benchmarks(comparison) for m in _measures(comparison)]
    scores = (f"{benchmark} {comparison.title(measure)}" for measure, benchmark in names)
    return plain_table(
        f"Scores in percent, {AT_WORDS[comparison.at]}",
        ("arm", "seeds", *scores, "diverged", "collapsed"),
        [
            _arm_row(
                comparison,
                arm,
                len(arm.arm.runs),
                *(_score(arm.scores[measure][benchmark]) for measure, benchmark in names),
                *arm.rates.values(),
            )
            for arm in comparison.arms
        ],
        key="scores",
    )


def results_table(comparison: RunsComparison) -> Table:
    """Return a table of scores and differences for a paper.

    A score is bold if the intervals establish that it is the best in its column.
    """
    names = [(m, benchmark) for benchmark in _benchmarks(comparison) for m in _measures(comparison)]
    many = len(comparison.benchmarks) > 1
    titles = (f"{comparison.title(m)}, {b}" if many else comparison.title(m) for m, b in names)
    differences: dict[str, Cell] = {pair.candidate: _difference(pair) for pair in comparison.headline_pairs}
    label = re.sub(r"[^a-z0-9]+", "-", "-vs-".join(one.arm.name for one in comparison.arms).lower())
    against = f"Difference to {_paper_name(comparison.arms[0].arm)}"
    return Table(
        key=label.strip("-")[:60].strip("-") or "comparison",
        title="Results",
        caption=_caption(comparison),
        columns=tuple(map(Column, ("Method", "Seeds", *titles, against))),
        rows=tuple(
            Row(
                (
                    _paper_name(arm.arm),
                    len(arm.arm.runs),
                    *(
                        _score(arm.scores[m][b], is_best=comparison.best[m, b] == arm.arm.name)
                        for m, b in names
                    ),
                    differences.get(arm.arm.name),
                ),
                place=comparison.places[arm.arm.name],
            )
            for arm in comparison.arms
        ),
    )


def _paper_name(arm: Arm) -> str:
    has_label = any(run.get(LABEL, ABSENT) != ABSENT for run in arm.all_settings)
    return arm.name if has_label else paper_name(arm.name, arm.settings.get(ALGORITHM, ""))


def paper_name(name: str, algorithm: str) -> str:
    """Return an arm's name with its algorithm's name as papers spell it, such as `Dr. GRPO`.

    A name whose first word is not the algorithm's name, such as a label that the user chose, is unchanged.
    """
    first, space, rest = name.partition(" ")
    if first != algorithm or not re.fullmatch(r"[a-z][a-z0-9_]*", algorithm):
        return name
    words = [
        _SPELLINGS.get(one, one.upper() if len(one) <= _ACRONYM else one) for one in algorithm.split("_")
    ]
    return " ".join(words) + space + rest


def _caption(comparison: RunsComparison) -> str:
    """Return the caption of the results table: measure, problems, intervals and pairing of seeds."""
    title, pairs = comparison.title(MEAN), comparison.headline_pairs
    sets = (f"{name} ({counted(num, 'problem')})" for name, num in comparison.num_problems.items())
    text = f"{title} in percent on {' and '.join(sets)}, averaged over seeds."
    if comparison.has_intervals:
        text += " Brackets: 95 % confidence intervals for new seeds and new problems."
    text += " Differences are in percentage points"
    family = pairs[0].comparison.family.words
    text += f"; their intervals hold jointly for {family}." if family and comparison.has_intervals else "."
    designs = {pair.design for pair in pairs}
    if len(designs) == 1:
        text += f" Compared: {designs.pop()}."
    return text + (" Bold: shown to be the best in its column." if any(comparison.best.values()) else "")


def _difference(pair: Pair) -> Estimate:
    return Estimate(pair.comparison.difference.value, pair.new_seeds_and_problems, "points", is_signed=True)


def arms_table(comparison: RunsComparison) -> Table:
    """Return each arm's window, seeds, and costs up to the evaluations that are compared."""
    return plain_table(
        "Arms",
        ("arm", "window [l, u]", "seeds", "step", "tokens generated", "training time"),
        [
            _arm_row(
                comparison,
                arm,
                _window(arm.arm.window),
                ranges_text(arm.arm.seeds),
                None if arm.is_imported and not any(arm.steps) else Span(*arm.steps, "count"),
                arm.num_tokens and Span(*arm.num_tokens, "count"),
                arm.wall_s and Span(*arm.wall_s, "seconds"),
            )
            for arm in comparison.arms
        ],
        key="arms",
    )


def _window(window: Window | None) -> Cell:
    """Return the window [l, u] as a cell, or None if the trust region has no constant window."""
    if window is None:
        return None
    return "none" if window.is_unbounded else Estimate(None, (window.lower, window.upper), "ratio")


def difference_tables(comparison: RunsComparison) -> list[Table | None]:
    """Return the tables of differences, headline first, then those on collapsed runs and on seeds alone.

    The table on collapsed runs is None if no run collapsed; arms in which it is unknown whether some run
    collapsed are ignored. The last table is None if no pair has a permutation test (see `_over_seeds`).
    """
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
    titles = ("arm", "difference", "seeds", "new problems", "same problems", "p", "P(better)")
    return Table(
        key=f"differences/{measure}/{benchmark}",
        title=(
            f"{comparison.title(measure)} on {benchmark} ({counted(num_problems, 'problem')}), "
            f"points against {comparison.arms[0].arm.name}{together}"
        ),
        columns=(*map(Column, titles), Column("verdict", is_prose=True)),
        rows=tuple(
            Row(
                (
                    pair.candidate,
                    Value(pair.comparison.difference.value, "points", is_signed=True),
                    pair.design,
                    Estimate(None, pair.new_seeds_and_problems, "points", is_signed=True),
                    Estimate(None, pair.new_seeds, "points", is_signed=True),
                    Value(pair.p_value, "p"),
                    Value(pair.comparison.improvement, "fraction"),
                    pair.verdict.words,
                ),
                place=comparison.places[pair.candidate],
            )
            for pair in pairs
        ),
    )


def _collapsed(comparison: RunsComparison) -> Table | None:
    """Return a table of means, interquartile means and collapse rates by arm, or None if no run collapsed.

    An arm in which it is unknown whether some run collapsed has no collapse rate. Its runs are ignored when
    deciding whether any run collapsed.
    """
    rates = {arm.arm.name: arm.collapsed for arm in comparison.arms}
    if not any(rate is not None and rate.seeds for rate in rates.values()):
        return None
    title = comparison.title(MEAN)
    return plain_table(
        "Collapsed runs, in percent",
        ("arm", f"mean {title}", f"IQM {title} over seeds", "collapsed, with exact interval"),
        [
            _arm_row(
                comparison,
                arm,
                Value(score.value, "share"),
                Value(interquartile_of(score.value_S), "share"),
                None if arm.collapsed is None else arm.collapsed.words,
            )
            for arm in comparison.arms
            for score in [arm.scores[MEAN][comparison.headline]]
        ],
        key="collapsed",
    )


def _over_seeds(comparison: RunsComparison) -> Table | None:
    """Return a table of statistics over seeds alone, which do not assume normality, or None.

    Returns None if no pair has the p value of a permutation test, either because there are too few paired
    seeds or because the first planned look is still ahead.
    """
    found = {pair.candidate: pair.comparison for pair in comparison.headline_pairs}
    if all(one.permutation_p is None for one in found.values()):
        return None
    titles = ("permutation p", "P(better) interval", "IQM", "IQM of baseline", "IQM difference")
    return plain_table(
        f"{comparison.title(MEAN)} on {comparison.headline}, over seeds alone, in percent",
        ("arm", *titles),
        [
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
        ],
        key="over_seeds",
    )


def planning_table(comparison: RunsComparison) -> Table | None:
    """Return a table of the smallest differences that new runs detect, by numbers of seeds and problems.

    Returns None if the comparison has no `plan`.
    """
    plan = comparison.plan
    if plan is None:
        return None
    return plain_table(
        f"Planning new runs: the smallest difference in {comparison.title(MEAN)} on "
        f"{comparison.headline} that each number of seeds per arm detects, in points",
        ("", *map(str, PLANNED_SEEDS), f"seeds for {points(plan.effect)}"),
        [
            (
                f"{problems} problems",
                *(Value(rounded_up(plan.detectable[problems][num]), "points") for num in PLANNED_SEEDS),
                plan.seeds_words(problems),
            )
            for problems in plan.num_seeds
        ],
        key="planning",
    )


def pass_at_k_table(comparison: RunsComparison) -> Table | None:
    """Return a table of Pass@k by arm, or None if there are fewer than three samples per problem.

    The columns are the powers of two up to the number of samples per problem, and this number itself. If runs
    differ in the number of samples per problem, the smallest number is used.
    """
    if comparison.k < 3:
        return None
    shown_k = sorted({2**power for power in range(comparison.k.bit_length())} | {comparison.k})
    return plain_table(
        f"Pass@k in percent against k, {comparison.headline}",
        ("arm", *(f"k = {k}" for k in shown_k)),
        [
            _arm_row(
                comparison,
                arm,
                *(Value(pass_at(comparison, arm.arm.name, k).value, "share") for k in shown_k),
            )
            for arm in comparison.arms
        ],
        key="pass_at_k",
    )


def solved_table(comparison: RunsComparison, benchmark: str) -> Table:
    """Return a table of how many problems each arm solved always, sometimes, never, and as the only arm.

    If arms have different numbers of answers per problem, equally many are drawn from each arm.
    """
    by_arm = comparison.outcomes[benchmark]
    num_answers, correct = common_answers(by_arm)
    num_solving_P = (np.stack(list(correct.values())) > 0).sum(axis=0)
    is_drawn = any(sum(table.num_samples_S) > num_answers for table in by_arm.values())
    of_so_many = f", {counted(num_answers, 'answer')} per problem drawn from each arm" if is_drawn else ""
    titles = ("every answer correct", "some correct", "none correct", "solved by no other arm")
    return plain_table(
        f"Solved problems, {benchmark} ({counted(len(num_solving_P), 'problem')}{of_so_many})",
        ("arm", *titles),
        [
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
        ],
        key=f"solved/{benchmark}",
    )
