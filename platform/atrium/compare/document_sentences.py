"""The sentences about a comparison that may be written in a paper: no more than the intervals say."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.compare.confounds import unknown_words, with_words, withheld_words
from atrium.compare.counted_runs import left_out_words
from atrium.compare.judged_pairs import MACRO
from atrium.compare.run_comparison import ArmScores, RunsComparison
from atrium.document.document import Sentence
from atrium.document.formatting import counted
from atrium.stats.arm_pairs import MEAN, Pair
from atrium.stats.wording import for_paper, headline

_MOST_NAMED = 4
"""Leaders that a headline names."""
MOST_PAIRS = 2
"""Pairs with a sentence each."""


def paper_sentences(comparison: RunsComparison) -> list[str]:
    """One sentence per candidate, for new problems: new seeds and new problems of the same kind."""
    found = []
    for arm, pair in zip(comparison.arms[1:], comparison.headline_pairs, strict=True):
        sentence = _sentence(comparison, pair)
        if not pair.verdict.withheld and pair.verdict.kind != "same_method":
            sentence += _rates(arm, comparison.arms[0]) + _condition(pair)
            sentence += _requested(comparison) + _planned(comparison)
        found.append(sentence)
    return found


def headline_sentences(comparison: RunsComparison) -> list[Sentence]:
    """What the comparison shows in one sentence; of three methods, what each pair shows, too."""
    pairs = comparison.headline_pairs
    each = [
        Sentence(
            headline(
                pair.verdict,
                pair.comparison.difference.value,
                names=(pair.baseline, pair.candidate),
                interval=pair.another_exam,
            ),
            pair.verdict.tone,
            f"verdict/{pair.candidate}",
        )
        for pair in pairs
    ]
    if len(pairs) == 1:
        return each
    parts = (_leaders_words(comparison), *_counts(pairs))
    return [Sentence("; ".join(parts), key="headline"), *(each if len(pairs) == MOST_PAIRS else ())]


def _leaders_words(comparison: RunsComparison) -> str:
    """`dapo is highest; not shown to differ from sapo`."""
    leaders = comparison.leaders[MEAN, comparison.headline]
    if not leaders:
        scores = {one.arm.name: one.scores[MEAN][comparison.headline].value for one in comparison.arms}
        return f"{max(scores, key=lambda name: scores[name])} is highest"
    highest, *others = leaders
    if not others:
        return f"{highest} is shown to be the best"
    *first, last = others if len(others) <= _MOST_NAMED else [f"{len(others)} others"]
    named = f"{', '.join(first)} and {last}" if first else last
    return f"{highest} is highest; not shown to differ from {named}"


def _counts(pairs: Sequence[Pair]) -> list[str]:
    """`9 of 11 beat grpo`, or why none is judged; of two pairs nothing that their sentences say."""
    told = [pair.verdict for pair in pairs if pair.verdict.kind != "same_method"]
    if told and all(verdict.withheld for verdict in told):
        return [" or ".join(dict.fromkeys(verdict.label for verdict in told))]
    if len(pairs) == MOST_PAIRS or not told:
        return []
    better, worse = (sum(verdict.kind == kind for verdict in told) for kind in ("better", "worse"))
    beat = f"{better or 'none'} of {len(told)} {'beats' if better == 1 else 'beat'} {pairs[0].baseline}"
    return [f"{beat}, {worse} {'is' if worse == 1 else 'are'} worse" if worse else beat]


def difference_sentences(comparison: RunsComparison) -> list[str]:
    """The first sentence per candidate, without the rates of divergence and the planned seeds."""
    return [_sentence(comparison, pair) for pair in comparison.headline_pairs]


def _rates(one: ArmScores, other: ArmScores) -> str:
    """How many runs of each arm diverged and collapsed; nothing of imported runs."""
    if imported := [arm.arm.name for arm in (one, other) if arm.is_imported]:
        return f" Whether runs of {' and '.join(imported)} diverged is not known."
    first, second = (
        " and ".join(f"{rate} {what}" for what, rate in arm.rates.items()) for arm in (one, other)
    )
    return f" Of the runs of {one.arm.name}, {first}; of those of {other.arm.name}, {second}."


def _condition(pair: Pair) -> str:
    """What the bounds hold for: both readings of diverged runs or, if none diverged, runs that do not."""
    if pair.if_wrong is not None:
        return " The bounds hold whether runs that diverged count with their scores or as always wrong."
    return "" if pair.verdict.names_difference else " The bound holds where no run diverges."


def _planned(comparison: RunsComparison) -> str:
    plan = comparison.planned.plan
    if plan is None:
        return " The number of seeds was not planned."
    looks = f" with looks at {', '.join(map(str, plan.looks))}" if plan.looks else ""
    return f" {plan.num_seeds} seeds per method were planned{looks}."


def _requested(comparison: RunsComparison) -> str:
    """The runs that the user left out, with the reasons."""
    left_out = [one for one in comparison.left_out if one.is_by_request]
    words = left_out_words(left_out)
    return f" {words[:1].upper()}{words[1:]}." if words else ""


def _sentence(comparison: RunsComparison, pair: Pair) -> str:
    one, other, verdict = pair.candidate, pair.baseline, pair.verdict
    is_said = not verdict.withheld and verdict.kind != "same_method"
    if is_said and (withheld := withheld_words(comparison.confounds, one, other)):
        return withheld
    family = family_words(pair)
    said = for_paper(
        verdict,
        pair.comparison.difference.value,
        pair.another_exam,
        names=(other, one),
        settings=with_words(comparison.confounds, one, other)
        or unknown_words(comparison.unknown, one, other),
        measure=comparison.title(MEAN) + ("" if pair.benchmark == MACRO else f" on {pair.benchmark}"),
        together=f"{family and f', {family}'}; {pair.design}",
    )
    num_problems = comparison.num_problems.get(pair.benchmark, sum(comparison.num_problems.values()))
    return f"{said}, over {_seeds(pair)} and {counted(num_problems, 'problem')}." if is_said else f"{said}."


def _seeds(pair: Pair) -> str:
    num_baseline, num_candidate = pair.pairing.num_seeds
    if num_baseline == num_candidate:
        return f"{counted(num_candidate, 'seed')} per method"
    return f"{num_candidate} and {num_baseline} seeds"


def family_words(pair: Pair) -> str:
    """`jointly for 5 candidates, Bonferroni`; empty for a single difference."""
    words = pair.comparison.family.words.replace(" (", ", ").replace(")", "")
    return f"jointly for {words}" if words else ""
