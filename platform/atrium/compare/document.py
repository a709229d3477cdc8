"""A comparison as a document: verdicts, what may be written, tables and figures for every medium.

Scores and differences are in points (percent); an interval of a score is that for new problems.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from atrium.compare.confounds import confound_lines, environment_lines, shared_lines, unknown_lines
from atrium.compare.counted_runs import left_out_words
from atrium.compare.document_figures import (
    difference_figure,
    grid_figure,
    pass_at_k_figure,
    reward_figure,
    score_figure,
)
from atrium.compare.document_sentences import MOST_PAIRS, headline_sentences, paper_sentences
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
    "Intervals are 95 %. New problems: new seeds and new problems of the same kind; seeds are a random "
    "factor crossed with problems. Same problems: new seeds only.",
)
_READING = (
    "A verdict is read off the interval for new problems: it names a difference where 0 lies outside. "
    "Arms with one or two seeds are not judged. If several arms or benchmarks are compared, intervals hold "
    "together; the method is stated above each table.",
    "Seeds are paired by number if at least three, and two thirds of each arm, are common; otherwise all "
    "runs of one arm are compared with all runs of the other.",
    "rho: what pairing by seed and problem makes use of; it multiplies the standard error by sqrt(1 - rho).",
    "P(better): the probability that a run of the arm scores higher than one of the baseline; from 10 seeds.",
    "Over seeds alone: interquartile means (IQM) need 4 seeds, sign permutations 6, bootstraps 10. Of 4 to 7 "
    "seeds an IQM leaves out the best and the worst, and so a single collapse.",
    "p: the least alpha at which the interval for new problems leaves out 0.",
    "Planning: what other runs would show, from how seeds and problems vary here (not from the difference), "
    "with power 0.8 and assurance 0.8 at alpha 0.05. Seeds added to these after a look need fresh data, or a "
    "sequential bound.",
)
_MOST_RUNS = 100
"""Runs that the last note names."""
_OPEN = ("scores", "differences")
"""The sections that a page does not fold."""
_MOST_NAMED = 4
"""Arms that a title names."""


def comparison_document(
    comparison: RunsComparison,
    training: Training,
    *,
    made: str = "",
    claims: Sequence[str] = (),
    measure: str = MEAN,
) -> Document:
    """The document of a comparison. `made` says where and when; `claims` are sentences about claims."""
    sections = tuple(_sections(comparison, training, claims, measure))
    summary = comparison_summary(comparison, measure)
    notes = (*summary.notes, Sentence(_runs_line(comparison), "muted"))
    return replace(summary, subtitle=made, sections=sections, notes=notes)


def comparison_summary(comparison: RunsComparison, measure: str = MEAN) -> Document:
    """The document of a comparison without its sections; verdicts are by `measure`."""
    return Document(
        key="comparison",
        title=_title(comparison),
        alerts=(
            *(Sentence(line, "warning", "confound") for line in confound_lines(comparison.confounds)),
            *(Sentence(line, "warning", "unknown") for line in unknown_lines(comparison.unknown)),
            *(Sentence(line, "muted", "environment") for line in environment_lines(comparison.environment)),
        ),
        answer=_answer(comparison, measure),
        notes=(
            *(Sentence(line, "warning") for line in note_lines(comparison)),
            *(Sentence(line, "muted") for line in (*_intervals(comparison), *_READING)),
        ),
    )


def report_name(comparison: RunsComparison) -> str:
    """A name for the files that the file system and a browser take."""
    text = "-vs-".join(one.arm.name for one in comparison.arms)
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.")[:60] or "comparison"


def _plan_line(comparison: RunsComparison) -> str:
    """How the number of seeds was planned; empty where no verdict is given and none is planned."""
    kinds = {pair.verdict.kind for pair in comparison.pairs}
    is_judged = bool(kinds & {"better", "worse", "not_distinguishable", "depends_on_diverged"})
    return comparison.planned.words() if is_judged or comparison.planned.plan is not None else ""


def _best_line(comparison: RunsComparison) -> str:
    """Which of several arms is shown to be the best by what verdicts rest on; empty for two arms."""
    if len(comparison.arms) < 3:
        return ""
    best = comparison.best[MEAN, comparison.headline]
    where = f"{comparison.title(MEAN)} on {comparison.headline}"
    if best is None:
        return f"no arm is shown to be the best by {where}"
    return f"{best} is shown to be the best by {where}: its intervals against all other arms lie above 0"


def note_lines(comparison: RunsComparison) -> list[str]:
    """What a reader has to know about these runs: single seeds, runs that were left out, versions."""
    single = [arm.arm.name for arm in comparison.arms if len(arm.arm.runs) == 1]
    left_out = left_out_words(comparison.left_out)
    return [
        *([left_out] if left_out else []),
        *(
            [f"one seed ({', '.join(single)}): not judged, and no interval for new seeds is known"]
            if single
            else []
        ),
        *comparison.notes,
        *shared_lines(comparison.environment),
    ]


def _runs_line(comparison: RunsComparison) -> str:
    """The names of the compared runs, at most 100."""
    names = [run.name for one in comparison.arms for run in one.arm.runs.values()]
    rest = f" and {len(names) - _MOST_RUNS} more" if len(names) > _MOST_RUNS else ""
    return f"Runs: {', '.join(names[:_MOST_RUNS])}{rest}."


def _title(comparison: RunsComparison) -> str:
    names = [arm.arm.name for arm in comparison.arms]
    candidates = ", ".join(names[1:]) if len(names) <= _MOST_NAMED else f"{len(names) - 1} methods"
    measure = f"{comparison.title(MEAN)} on {comparison.headline}"
    return f"{candidates} against {names[0]}: {measure}"


def _answer(comparison: RunsComparison, measure: str) -> tuple[Sentence, ...]:
    """Equal methods; a verdict per candidate on the macro average or only benchmark; the best by Mean@K."""
    equal = [Sentence(same_method_words(names), key="same_method") for names in comparison.same_methods]
    pairs = [comparison.pair(arm.arm.name, measure, comparison.headline) for arm in comparison.arms[1:]]
    verdicts = [Sentence(pair.words, pair.verdict.tone, f"verdict/{pair.candidate}") for pair in pairs]
    others = {"best": _best_line(comparison), "plan": _plan_line(comparison)}
    if measure == MEAN and len(pairs) > MOST_PAIRS:
        equal, others["best"] = [headline_sentences(comparison)[0], *equal], ""
    return (*equal, *verdicts, *(Sentence(text, key=key) for key, text in others.items() if text))


def _intervals(comparison: RunsComparison) -> tuple[str, ...]:
    return _INTERVALS if comparison.has_intervals else ()


def _sections(
    comparison: RunsComparison, training: Training, claims: Sequence[str], measure: str
) -> list[Section]:
    """The sections; those without figures and tables are left out."""
    written = (*paper_sentences(comparison), *claims)
    single = comparison.benchmarks if len(comparison.benchmarks) > 1 else ()
    found = [
        Section(
            title="What may be written",
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
            "Who solves what",
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
