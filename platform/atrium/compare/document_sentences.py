"""Sentences about a comparison, for its headline and for a paper.

They claim no more than the intervals show.
"""

from __future__ import annotations

from collections.abc import Sequence

from atrium.compare.confounds import unknown_words, with_words, withheld_words
from atrium.compare.counted_runs import left_out_words
from atrium.compare.judged_pairs import MACRO
from atrium.compare.run_comparison import ArmScores, RunsComparison
from atrium.document.document import Sentence
from atrium.document.formatting import counted, share
from atrium.stats.arm_pairs import MEAN, Pair
from atrium.stats.wording import for_paper, signed

_FEW_PAIRS = 2
"""The largest number of pairs whose verdicts are not counted."""


def paper_sentences(comparison: RunsComparison) -> list[str]:
    """Return a text per candidate on its difference from the baseline, for new seeds and new problems."""
    found = []
    for arm, pair in zip(comparison.arms[1:], comparison.headline_pairs, strict=True):
        sentence = difference_sentence(comparison, pair)
        if not pair.verdict.withheld and pair.verdict.kind != "same_method":
            sentence += _rates(arm, comparison.arms[0]) + _condition(pair)
            sentence += _requested(comparison) + _planned(comparison)
        found.append(sentence)
    return found


def headline_sentences(comparison: RunsComparison) -> list[Sentence]:
    """Return a sentence on the highest arm and its lead over the next arm that uses another method.

    The result is empty if all arms are one method. An example is `atr is highest at 66.4 %, +3.9 points
    [−6.0, +13.7] over clip: not decided`. With more than two candidates, a second sentence states how many of
    them beat the baseline.
    """
    lead = comparison.lead
    if lead is None:
        return []
    name, other, num_arms = lead.baseline, lead.candidate, len(comparison.arms)
    score = next(
        one.scores[MEAN][comparison.headline].value for one in comparison.arms if one.arm.name == name
    )
    difference = signed(-lead.comparison.difference.value)
    text = f"{name} is {'highest' if num_arms > 2 else 'higher'} at {share(score)}, {difference} points"
    counts = _counts(comparison.headline_pairs)
    if lead.verdict.withheld or lead.new_seeds_and_problems is None:
        return [Sentence(f"{text} over {other} ({lead.verdict.label})", key="headline"), *counts]
    low, high = lead.new_seeds_and_problems
    leaders = comparison.leaders[MEAN, comparison.headline]
    is_decided = lead.verdict.kind == "worse" and other not in leaders
    verdict = "not decided"
    if is_decided:
        verdict = "shown to be the best" if leaders and num_arms > 2 else "better"
    text = f"{text} [{signed(-high)}, {signed(-low)}] over {other}: {verdict}"
    return [Sentence(text, "better" if is_decided else "plain", "headline"), *counts]


def _counts(pairs: Sequence[Pair]) -> list[Sentence]:
    """Return a sentence that counts the candidates that beat the baseline, such as `9 of 11 beat grpo`.

    The result is empty for one or two pairs, and if no pair is judged.
    """
    told = [pair.verdict for pair in pairs if pair.verdict.kind != "same_method"]
    if len(pairs) <= _FEW_PAIRS or all(verdict.withheld for verdict in told):
        return []
    better, worse = (sum(verdict.kind == kind for verdict in told) for kind in ("better", "worse"))
    text = f"{better or 'none'} of {len(told)} {'beats' if better == 1 else 'beat'} {pairs[0].baseline}"
    more = f", {worse} {'is' if worse == 1 else 'are'} worse" if worse else ""
    return [Sentence(text + more, key="counts")]


def _rates(one: ArmScores, other: ArmScores) -> str:
    """Return a sentence that says how many runs of each arm diverged and collapsed.

    For imported runs it says that this is unknown.
    """
    if imported := [arm.arm.name for arm in (one, other) if arm.is_imported]:
        return f" Whether runs of {' and '.join(imported)} diverged is unknown."
    first, second = (
        " and ".join(f"{rate} {what}" for what, rate in arm.rates.items()) for arm in (one, other)
    )
    return f" Runs of {one.arm.name}: {first}; runs of {other.arm.name}: {second}."


def _condition(pair: Pair) -> str:
    """Return a sentence that says under which assumption about diverged runs the bounds hold.

    The result is empty if no run of the pair diverged and the verdict names a difference.
    """
    if pair.if_wrong is not None:
        return " The bounds hold whether diverged runs count with their scores or as always wrong."
    return "" if pair.verdict.names_difference else " The bound holds if no run diverges."


def _planned(comparison: RunsComparison) -> str:
    plan = comparison.planned.plan
    if plan is None:
        return " The number of seeds was not planned."
    looks = f" with looks at {', '.join(map(str, plan.looks))} seeds" if plan.looks else ""
    return f" {plan.num_seeds} seeds per method were planned{looks}."


def _requested(comparison: RunsComparison) -> str:
    """Return a sentence that names the runs that the user left out, with the reasons.

    The result is empty if there are no such runs.
    """
    words = left_out_words([one for one in comparison.left_out if one.cause == "request"])
    return f" {words[:1].upper()}{words[1:]}." if words else ""


def difference_sentence(comparison: RunsComparison, pair: Pair) -> str:
    """Return a sentence for a paper on the difference between the two arms of a pair.

    If the arms have too many confounds to name, the text says instead that no sentence can be quoted.
    """
    one, other, verdict = pair.candidate, pair.baseline, pair.verdict
    is_said = not verdict.withheld and verdict.kind != "same_method"
    if is_said and (withheld := withheld_words(comparison.confounds, one, other)):
        return withheld
    family = family_words(pair)
    said = for_paper(
        verdict,
        pair.comparison.difference.value,
        pair.new_seeds_and_problems,
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
    """Describe the family of comparisons that a pair belongs to. The result is empty for a single difference.

    An example is `jointly for 5 candidates, Bonferroni`.
    """
    words = pair.comparison.family.words.replace(" (", ", ").replace(")", "")
    return f"jointly for {words}" if words else ""
