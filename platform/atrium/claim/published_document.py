"""The document of `atrium audit`: the conclusions that a published table of scores supports.

It also gives the numbers of problems and seeds that are needed to establish each difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atrium.claim.published import Published
from atrium.document.document import (
    Axis,
    Bounds,
    Cell,
    Column,
    Document,
    Estimate,
    Intervals,
    Mark,
    Row,
    Section,
    Sentence,
    Table,
    Value,
)
from atrium.stats.power import PLANNED_SEEDS
from atrium.stats.published import (
    MIN_SEEDS,
    Question,
    StatedDifference,
    StatedPlan,
    StatedScore,
    is_attainable,
    stated_difference,
    stated_plan,
)
from atrium.stats.simultaneous import Family
from atrium.stats.wording import signed

MACRO = "macro average"
_QUESTIONS: Mapping[Question, tuple[str, str]] = {
    "sampling": ("same problems, sampled again", "on the same problems, sampled again"),
    "problems": ("other problems", "on other problems"),
    "seeds": ("other seeds", "with other seeds"),
    "seeds and problems": ("other seeds and problems", "with other seeds on other problems"),
}
"""Column title and phrase of each question."""
_SCORES_NOTE = (
    "95 % intervals. Sampled again: binomial over all answers. Other problems: binomial over problems, "
    "regardless of the number of samples. Both are the widest that a score allows; lower ends include the "
    "effect of choosing. Best of M adds: upper bound, for M evaluations that are independent given the "
    "accuracy; checkpoints of one run are correlated. Choice on the test set adds: upper bound for other "
    "problems, as if each evaluation had its own problems."
)
_DIFFERENCES_NOTE = (
    "Simultaneous 95 % intervals over methods{benchmarks}. Binomial over answers or over problems, with "
    "independent methods; results per problem, which the table lacks, would narrow them. Other seeds: from "
    "the stated or assumed standard deviation, taken as exact if fewer than two seeds are stated. Ends "
    "include the effect of choosing."
)
_PLAN_NOTE = (
    "Power 0.8 at level 0.05 for a study that chooses no evaluation. Binomial over problems, with "
    "independent methods; with results per problem, fewer problems suffice. For an average, the number is "
    "the total over its benchmarks, in their proportions. "
)
_SEEDS_NOTE = (
    "Seeds: from the stated or assumed standard deviation, at its upper 80 % bound if at least two seeds are "
    "stated."
)
_NO_SEEDS_NOTE = "The number of seeds is unknown, as is their standard deviation."


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedPair:
    """A comparison of a method with the baseline, on one benchmark or on the macro average.

    `candidate` and `against` are the scores of the method and the baseline, one per benchmark. `plan` is
    None if the difference to plan for is 0.
    """

    method: str
    baseline: str
    benchmark: str
    candidate: tuple[StatedScore, ...]
    against: tuple[StatedScore, ...]
    difference: StatedDifference
    plan: StatedPlan | None


def audited_pairs(rows: Sequence[Published], baseline: str, effect: float | None) -> list[AuditedPair]:
    """Compare each method with the baseline method, on each benchmark that they share and on the average.

    `effect` is the difference to plan for, as a fraction; None means the stated difference of each pair.
    The intervals on benchmarks are simultaneous over methods and benchmarks. The intervals on averages
    are simultaneous over methods.
    """
    scores: dict[str, dict[str, StatedScore]] = {}
    for row in rows:
        scores.setdefault(row.method, {})[row.benchmark] = row.stated
    base = scores.pop(baseline)
    pairs = []
    for method, own in scores.items():
        shared = [name for name in own if name in base]
        for benchmark in [*shared, *([MACRO] if len(shared) > 1 else [])]:
            names = shared if benchmark == MACRO else [benchmark]
            candidate, against = (tuple(arm[name] for name in names) for arm in (own, base))
            family = Family(num_candidates=len(scores), num_benchmarks=1 if benchmark == MACRO else len(base))
            difference = stated_difference(candidate, against, family=family)
            size = abs(difference.value) if effect is None else effect
            pairs.append(
                AuditedPair(
                    method=method,
                    baseline=baseline,
                    benchmark=benchmark,
                    candidate=candidate,
                    against=against,
                    difference=difference,
                    plan=stated_plan(candidate, against, size) if size > 0.0 else None,
                )
            )
    return pairs


def audit_document(
    rows: Sequence[Published], pairs: Sequence[AuditedPair], title: str, *, assumed: Sequence[str] = ()
) -> Document:
    """Return the audit: a conclusion for each pair, the weaknesses of the table, and up to three new tables.

    The new tables contain the scores, the differences, and the required problems and seeds. `assumed`
    describes values that the user supplied for missing entries.
    """
    sections = [Section(title="Scores", tables=(_scores_table(rows),))]
    if pairs:
        figures = (_differences_figure(pairs),)
        sections.append(Section(title="Differences", figures=figures, tables=(_differences_table(pairs),)))
    if any(pair.plan for pair in pairs):
        sections.append(Section(title="Problems and seeds needed", tables=(_plan_table(pairs),)))
    sources = sorted({row.source for row in rows} - {""})
    return Document(
        key="audit",
        title=title,
        alerts=tuple(Sentence(text, "warning") for text in _alerts(rows, pairs)),
        answer=tuple(
            Sentence(_answer(pair), "plain", f"audit/{pair.method}/{pair.benchmark}") for pair in pairs
        ),
        sections=tuple(sections),
        notes=tuple(
            Sentence(text, "warning")
            for text in (
                *(f"assumed where not stated: {one}" for one in assumed),
                *(f"source: {source}" for source in sources),
            )
        ),
    )


def _answer(pair: AuditedPair) -> str:
    """Return the conclusion for a pair: the better method, or all reasons why none is established."""
    difference = pair.difference
    high, low = (pair.method, pair.baseline) if difference.value >= 0.0 else (pair.baseline, pair.method)
    stated = f"{pair.method} against {pair.baseline} on {pair.benchmark}: {signed(difference.value)} points"
    if difference.is_established:
        return f"{stated}. The table establishes that {high} is better than {low}"
    reasons = [] if difference.choosing else ["the number of evaluations is not stated"]
    if difference.num_seeds < MIN_SEEDS:
        is_stated = all(one.num_seeds for one in (*pair.candidate, *pair.against))
        reasons.append("fewer than three seeds" if is_stated else "the number of seeds is not stated")
    if difference.intervals["seeds"] is None:
        reasons.append("the spread over seeds is unknown")
    reasons += [_span(difference, one) for one in _QUESTIONS if not difference.excludes_zero(one)]
    said = f"{stated}. Not established that {high} is better than {low}: {'; '.join(filter(None, reasons))}"
    if difference.excludes_zero("sampling"):
        unless = "" if difference.choosing else ", if neither is the best of several evaluations"
        said += (
            f". Established only for these checkpoints and problems{unless}: {_span(difference, 'sampling')}"
        )
    return said


def _span(difference: StatedDifference, question: Question) -> str:
    """Return the interval that answers a question and the question, such as `+1.2 to +3.4 on other problems`.

    Returns an empty string if the interval is unknown.
    """
    known = difference.intervals[question]
    return "" if known is None else f"{signed(known.low)} to {signed(known.high)} {_QUESTIONS[question][1]}"


def _alerts(rows: Sequence[Published], pairs: Sequence[AuditedPair]) -> Iterator[str]:
    """Yield warnings about the table: impossible scores, best-of-several scores, and missing entries."""
    if not pairs:
        yield "no two methods share a benchmark: nothing is compared"
    for row in rows:
        num = row.stated.num_answers
        if row.stated.num_seeds is not None and not is_attainable(row.stated.score, num, row.step):
            yield (
                f"{row.method} on {row.benchmark}: no number of correct answers out of {num:,} gives this "
                "score; problems, samples or seeds differ from those stated, or answers are weighted"
            )
    if unknown := _methods(rows, lambda one: one.num_evaluations is None):
        yield (
            f"number of evaluations not stated: {unknown}. The best of several is inflated; --evaluations N "
            "bounds the inflation"
        )
    if chosen := _methods(rows, lambda one: (one.num_evaluations or 1) > 1):
        yield f"best of several evaluations, chosen on the benchmark itself: {chosen}"
    if unknown := _methods(rows, lambda one: one.num_seeds is None):
        yield f"number of seeds not stated (counted as one): {unknown}"
    if single := _methods(rows, lambda one: one.num_seeds == 1):
        yield f"one seed: {single}"
    if unknown := _methods(rows, lambda one: one.seed_sd is None):
        yield (
            f"standard deviation over seeds unknown: {unknown}. The required number of seeds depends on it; "
            "--seed-sd POINTS assumes one"
        )


def _methods(rows: Sequence[Published], has: Callable[[StatedScore], bool]) -> str:
    """Return the names of the methods with a score for which `has` is true, separated by commas.

    Returns `all methods` if every method has such a score, and an empty string if none has.
    """
    named = list(dict.fromkeys(row.method for row in rows if has(row.stated)))
    return "all methods" if len(named) == len({row.method for row in rows}) else ", ".join(named)


def _scores_table(rows: Sequence[Published]) -> Table:
    titles = ("method", "benchmark", "problems", "samples", "seeds", "evaluations")
    more = ("score, sampled again", "other problems", "best of M adds", "choice on the test set adds")
    return Table(
        title="Stated scores in percent, and the intervals that they allow",
        columns=_columns((*titles, *more)),
        rows=tuple(Row(_score_cells(row)) for row in rows),
        note=_SCORES_NOTE,
    )


def _score_cells(row: Published) -> tuple[Cell, ...]:
    one = row.stated
    return (
        row.method,
        row.benchmark,
        one.num_problems,
        one.num_samples,
        one.num_seeds,
        one.num_evaluations,
        Estimate(one.score, one.interval("sampling"), "share"),
        Estimate(None, one.interval("problems"), "share"),
        Value(one.inflation, "points"),
        Value(one.inflation_elsewhere, "points"),
    )


def _differences_table(pairs: Sequence[AuditedPair]) -> Table:
    questions = (title for title, _ in _QUESTIONS.values())
    titles = ("method", "benchmark", "stated", "choosing adds", *questions)
    several = " and benchmarks" if len({pair.benchmark for pair in pairs}) > 1 else ""
    return Table(
        title=f"Differences from {pairs[0].baseline} in points, and the intervals that the table allows",
        columns=_columns(titles),
        rows=tuple(
            Row(
                (
                    pair.method,
                    pair.benchmark,
                    Value(pair.difference.value, "points", is_signed=True),
                    _interval(pair.difference.choosing),
                    *(_interval(pair.difference.intervals[question]) for question in _QUESTIONS),
                )
            )
            for pair in pairs
        ),
        note=_DIFFERENCES_NOTE.format(benchmarks=several),
    )


def _differences_figure(pairs: Sequence[AuditedPair]) -> Intervals:
    several = len({pair.benchmark for pair in pairs}) > 1
    places = {method: place for place, method in enumerate(dict.fromkeys(pair.method for pair in pairs), 1)}
    return Intervals(
        key="audit/differences",
        title=f"Differences from {pairs[0].baseline}",
        caption="Thin: other problems. Thick: the same problems, sampled again. Seeds are left out.",
        x=Axis(title=f"points against {pairs[0].baseline}", unit="points"),
        rows=tuple(
            Bounds(
                name=f"{pair.method}, {pair.benchmark}" if several else pair.method,
                place=places[pair.method],
                value=pair.difference.value,
                outer=pair.difference.intervals["problems"],
                inner=pair.difference.intervals["sampling"],
            )
            for pair in pairs
        ),
        marks=(Mark(x=0.0),),
    )


def _interval(ends: tuple[float, float] | None) -> Cell:
    return None if ends is None else Estimate(None, ends, "points", is_signed=True)


def _plan_table(pairs: Sequence[AuditedPair]) -> Table:
    planned = [(pair, pair.plan) for pair in pairs if pair.plan is not None]
    has_seeds = any(plan.has_seeds for _, plan in planned)
    titles = ["method", "benchmark", "points", "problems, if seeds do not vary"]
    if has_seeds:
        titles += ["seeds, these problems", *(f"problems with {num} seeds" for num in PLANNED_SEEDS)]
    return Table(
        title=f"Problems and seeds per method needed for such a difference from {pairs[0].baseline}",
        columns=_columns(titles),
        rows=tuple(Row(_plan_cells(pair, plan)[: len(titles)]) for pair, plan in planned),
        note=_PLAN_NOTE + (_SEEDS_NOTE if has_seeds else _NO_SEEDS_NOTE),
    )


def _plan_cells(pair: AuditedPair, plan: StatedPlan) -> tuple[Cell, ...]:
    counts: list[Cell] = [None] * (1 + len(PLANNED_SEEDS))
    if plan.has_seeds:
        found = (plan.num_problems_with[num] for num in PLANNED_SEEDS)
        counts = [_count(plan.num_seeds, "over 1,000"), *(_count(num, "more seeds") for num in found)]
    problems = _count(plan.num_problems, "over 10,000,000")
    return (pair.method, pair.benchmark, Value(plan.effect, "points"), problems, *counts)


def _count(num: int | None, otherwise: str) -> Cell:
    return otherwise if num is None else Value(num, "count")


def _columns(titles: Sequence[str]) -> tuple[Column, ...]:
    """Return one column per title.

    A narrow terminal hides the columns of stated counts, such as `problems` and `samples`.
    """
    given = ("problems", "samples", "seeds", "evaluations")
    return tuple(
        Column(title, is_text=title == "benchmark", priority=int(title in given)) for title in titles
    )
