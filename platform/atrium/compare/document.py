"""A comparison as a document: verdicts, sentences for a paper, tables and figures for every output format.

Scores are in percent, and differences in percentage points. Intervals of scores are for new seeds and new
problems.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from atrium.compare.confounds import environment_lines
from atrium.compare.counted_runs import left_out_experiments, left_out_words
from atrium.compare.document_alerts import comparison_alerts
from atrium.compare.document_figures import (
    difference_figure,
    grid_figure,
    pass_at_k_figure,
    reward_figure,
    score_figure,
)
from atrium.compare.document_sentences import headline_sentences, paper_sentences
from atrium.compare.document_tables import (
    arms_table,
    difference_tables,
    pass_at_k_table,
    planning_table,
    results_table,
    scores_table,
    solved_table,
)
from atrium.compare.run_comparison import RunsComparison
from atrium.compare.training_document import Training
from atrium.document.document import (
    Document,
    Figure,
    Section,
    Sentence,
    Table,
)
from atrium.stats.arm_pairs import MEAN
from atrium.stats.wording import same_method_words

WRITTEN = "written"
"""The key of the section with the sentences and the table for a paper."""
_INTERVALS = (
    "Intervals are 95 % confidence intervals. New problems: for new seeds and new problems of the same kind; "
    "seeds are a random factor crossed with problems. Same problems: for new seeds only.",
)
_READING = (
    "Verdicts use the interval for new problems: a verdict names a difference if the interval excludes 0. "
    "Arms with one or two seeds are not judged. If several arms or benchmarks are compared, intervals hold "
    "simultaneously; the method is stated above each table. Compare arms by the interval of the difference, "
    "not by overlap of the arms' own intervals, which include the difficulty of the problems.",
    "Seeds are paired by number if at least three seeds, and two thirds of each arm's seeds, are common; "
    "otherwise all runs of one arm are compared with all runs of the other.",
    "P(better): the probability that a run of the arm scores higher than a run of the baseline; needs 10 "
    "seeds.",
    "Over seeds alone: interquartile means (IQM) need 4 seeds, sign permutations 6, bootstraps 10. With 4 to "
    "7 seeds, an IQM excludes the best and the worst seed, and therefore a single collapse.",
    "p: the smallest alpha at which the interval for new problems excludes 0.",
    "Planning: the difference that new runs would detect, predicted from the variance of these seeds and "
    "problems (not from the difference), with power 0.8 and assurance 0.8 at alpha 0.05. It is larger than "
    "the half-width of an interval, because new runs must detect it in four of five studies, even if these "
    "few seeds understate the variance. Seeds that are "
    "added to these runs after a look at the results need fresh data or a sequential bound.",
)
_MOST_RUNS = 100
"""The largest number of runs that the last note names."""
_OPEN = ("scores", "differences")
"""The keys of the sections that a page shows unfolded."""
_MOST_NAMED = 4
"""The largest number of arms that a title names."""


def comparison_document(
    comparison: RunsComparison,
    training: Training,
    *,
    made: str = "",
    claims: Sequence[str] = (),
    measure: str = MEAN,
) -> Document:
    """Return the whole document of a comparison. The verdicts use the scores of `measure`.

    `made` is the subtitle, such as the current time and the names of the runs. `claims` are sentences with
    verdicts on papers' claims.
    """
    sections = tuple(_sections(comparison, training, claims, measure))
    summary = comparison_summary(comparison, measure)
    notes = (*summary.notes, Sentence(_runs_line(comparison), "muted"))
    return replace(summary, subtitle=made, sections=sections, notes=notes)


def comparison_summary(comparison: RunsComparison, measure: str = MEAN) -> Document:
    """Return the document of a comparison without its sections. Verdicts use the scores of `measure`."""
    intervals = _INTERVALS if comparison.has_intervals else ()
    return Document(
        key="comparison",
        title=_title(comparison),
        alerts=comparison_alerts(comparison),
        answer=_answer(comparison, measure),
        notes=(
            *(Sentence(line, "warning") for line in note_lines(comparison)),
            *map(Sentence, environment_lines(comparison.environment)),
            *(Sentence(line, "muted") for line in (*intervals, *_READING)),
        ),
    )


def report_name(comparison: RunsComparison) -> str:
    """Return a name for a report's files that is valid in file systems and URLs."""
    text = "-vs-".join(one.arm.name for one in comparison.arms)
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.")[:60] or "comparison"


def note_lines(comparison: RunsComparison) -> list[str]:
    """Return notes on the excluded runs that no alert mentions, and on properties of the comparison."""
    missing = {run.name for runs in comparison.planned.missing.values() for run in runs}
    experiments = left_out_experiments(comparison.left_out, comparison.run_names)
    others = [one for one in comparison.left_out if one.name.partition("/")[0] not in experiments]
    words = left_out_words([one for one in others if one.name not in missing])
    return [*([words] if words else []), *comparison.notes]


def _runs_line(comparison: RunsComparison) -> str:
    """Return a line with the names of the compared runs, at most 100."""
    names = comparison.run_names
    rest = f" and {len(names) - _MOST_RUNS} more" if len(names) > _MOST_RUNS else ""
    return f"Runs: {', '.join(names[:_MOST_RUNS])}{rest}."


def _title(comparison: RunsComparison) -> str:
    names = [arm.arm.name for arm in comparison.arms]
    candidates = ", ".join(names[1:]) if len(names) <= _MOST_NAMED else f"{len(names) - 1} methods"
    measure = f"{comparison.title(MEAN)} on {comparison.headline}"
    return f"{candidates} against {names[0]}: {measure}"


def _answer(comparison: RunsComparison, measure: str) -> tuple[Sentence, ...]:
    """Return sentences on the highest arm, on equal methods, on each candidate, and on the planned seeds."""
    equal = [Sentence(same_method_words(names), key="same_method") for names in comparison.same_methods]
    pairs = [comparison.pair(arm.arm.name, measure, comparison.headline) for arm in comparison.arms[1:]]
    verdicts = [Sentence(pair.words, pair.verdict.tone, f"verdict/{pair.candidate}") for pair in pairs]
    lead = headline_sentences(comparison) if measure == MEAN else []
    plan = [] if comparison.planned.plan is None else [Sentence(comparison.planned.words(), key="plan")]
    return (*lead, *equal, *verdicts, *plan)


def _sections(
    comparison: RunsComparison, training: Training, claims: Sequence[str], measure: str
) -> list[Section]:
    """Return the sections that have figures or tables."""
    written = (*paper_sentences(comparison), *claims)
    single = comparison.benchmarks if len(comparison.benchmarks) > 1 else ()
    found = [
        Section(
            title="Sentences for a paper",
            key=WRITTEN,
            sentences=tuple(map(Sentence, written)),
            tables=(results_table(comparison),),
        ),
        _section("Scores", [score_figure(comparison)], [scores_table(comparison)]),
        _section("Arms", [], [arms_table(comparison)]),
        _section("Differences", [difference_figure(comparison, measure)], difference_tables(comparison)),
        _section("Planning", [], [planning_table(comparison)]),
        _section(
            "Pass@k",
            [pass_at_k_figure(comparison), *(pass_at_k_figure(comparison, name) for name in single)],
            [pass_at_k_table(comparison)],
        ),
        _section(
            "Solved problems",
            [grid_figure(comparison, benchmark) for benchmark in comparison.benchmarks],
            [solved_table(comparison, benchmark) for benchmark in comparison.benchmarks],
        ),
        _section("Training", [reward_figure(comparison, training.rewards)], training.tables),
    ]
    shown = [one for one in found if one.figures or one.tables]
    return [replace(one, is_folded=one.key not in _OPEN) for one in shown]


def _section(title: str, figures: Sequence[Figure | None], tables: Sequence[Table | None]) -> Section:
    return Section(
        title=title,
        key=title.lower(),
        figures=tuple(filter(None, figures)),
        tables=tuple(filter(None, tables)),
    )
