"""The text of verdicts: what may be stated about a candidate and a baseline, in brief and in a paper.

A verdict depends on the interval for new seeds and new problems. `better` and `worse` require an interval
that excludes 0 and at least three seeds per arm. `not_distinguishable` says which differences the interval
rules out. `same_method` says that there is nothing to compare. All other kinds withhold a verdict and give no
sentence for a paper (`Verdict.withheld`): `depends_on_diverged` quotes the verdicts of both readings, and the
remaining kinds state at most an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

VerdictKind = Literal[
    "better",
    "worse",
    "not_distinguishable",
    "same_method",
    "not_estimable",
    "uninformative",
    "one_seed",
    "two_seeds",
    "depends_on_diverged",
    "preliminary",
    "incomplete",
    "planned",
]


class Phrase(NamedTuple):
    """The fixed texts of a kind of verdict: its sign and a short label.

    `withheld` is the reason why this kind gives no sentence for a paper. It is empty if there is a sentence.
    """

    sign: str
    label: str
    withheld: str = ""


PHRASES: Mapping[VerdictKind, Phrase] = {
    "better": Phrase("▲", "better"),
    "worse": Phrase("▼", "worse"),
    "not_distinguishable": Phrase("≈", "not distinguishable"),
    "same_method": Phrase("=", "the same method"),
    "not_estimable": Phrase("–", "not estimable", "one problem has no interval"),
    "uninformative": Phrase("–", "uninformative", "all answers are correct, or all are wrong"),
    "one_seed": Phrase("1", "one seed: not judged", "an arm with one seed is not judged"),
    "two_seeds": Phrase("2", "two seeds: not judged", "an arm with two seeds is not judged"),
    "depends_on_diverged": Phrase(
        "◇", "depends on diverged runs", "the verdict depends on how diverged runs count"
    ),
    "preliminary": Phrase("…", "preliminary", "the verdict is preliminary"),
    "incomplete": Phrase("◌", "incomplete", "the verdict is incomplete"),
    "planned": Phrase("…", "planned seeds missing", "not all planned seeds are in"),
}
"""A kind without `withheld` gives a sentence for a paper."""

_NONE_RULED_OUT = "no difference is ruled out"
_SCOPE = "if no run diverges, "
"""Condition before a ruled-out difference if no run diverged, since a few seeds do not show how often
others diverge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A permitted statement about two arms: in full (`words`), and as a label for the cell of a table.

    A verdict of kind `not_distinguishable` rules out differences larger than `excluded`; if `excluded` is
    None, it rules out no difference. For all other verdicts, `excluded` is None.
    """

    kind: VerdictKind
    words: str
    label: str
    excluded: float | None = None

    @property
    def names_difference(self) -> bool:
        """Whether the verdict calls one arm better than the other."""
        return self.kind in ("better", "worse")

    @property
    def tone(self) -> Literal["better", "worse", "plain"]:
        """The tone in which a document shows the verdict."""
        return self.kind if self.kind == "better" or self.kind == "worse" else "plain"

    @property
    def sign(self) -> str:
        """The character that marks the verdict's kind, such as `▲` for `better`."""
        return PHRASES[self.kind].sign

    @property
    def withheld(self) -> str:
        """The reason why the verdict gives no sentence for a paper, or an empty text if it gives one."""
        return f"{self.label} are in" if self.kind == "planned" else PHRASES[self.kind].withheld


def worded(kind: VerdictKind, words: str, label: str = "") -> Verdict:
    """Return a verdict of this kind; an empty `label` stands for the kind's usual label."""
    return Verdict(kind=kind, words=words, label=label or PHRASES[kind].label)


def judged(
    value: float,
    *,
    names: tuple[str, str],
    num_seeds: tuple[int, int],
    interval: tuple[float, float] | None,
    differs_on_same_problems: bool = False,
) -> Verdict:
    """Return the verdict on a difference (candidate minus baseline) with its interval.

    `names` and `num_seeds` list the baseline first. `interval` is for new seeds and new problems, and
    `differs_on_same_problems` says whether the interval for new seeds and the same problems excludes 0.
    """
    if min(num_seeds) == 1:
        return worded("one_seed", f"one seed: not judged; {estimate(value)}")
    if interval is None:
        return worded("not_estimable", "nothing can be said from one problem")
    if min(num_seeds) == 2:
        return worded("two_seeds", f"two seeds: not judged; {estimate(value)}")
    low, high = interval
    if low > 0.0 or high < 0.0:
        better, worse = (names[1], names[0]) if low > 0.0 else (names[0], names[1])
        least, most = sorted((abs(low), abs(high)))
        words = f"{better} is better than {worse} by {points(abs(value))}"
        words += f" (between {100.0 * least:.1f} and {100.0 * most:.1f})"
        return worded("better" if low > 0.0 else "worse", words)
    excluded = rounded_up(max(-low, high))
    found = _not_distinguishable(excluded if excluded < 1.0 else None, _SCOPE)
    if differs_on_same_problems:
        words = f"{found.words}; on these very problems alone the difference is more than noise"
        found = replace(found, words=words)
    return found


def _not_distinguishable(excluded: float | None, condition: str) -> Verdict:
    """Return the verdict that the arms are not distinguishable.

    It rules out differences larger than `excluded`; if `excluded` is None, it rules out no difference.
    `condition` is a clause before the ruled-out differences, such as `if no run diverges, `, or an empty
    text.
    """
    words = not_distinguishable(None if excluded is None else points(excluded), condition)
    return replace(worded("not_distinguishable", words), excluded=excluded)


def not_distinguishable(largest: str | None, condition: str = "") -> str:
    """Return the statement for an interval that contains 0.

    `largest` is the formatted end of the interval that is farther from 0, or None to rule out nothing.
    `condition` is a clause before the ruled-out differences, such as `if no run diverges, `, or an empty
    text.
    """
    return f"not distinguishable; {_NONE_RULED_OUT if largest is None else condition + ruled_out(largest)}"


def ruled_out(largest: str) -> str:
    """Return text such as `differences larger than 2.8 points are ruled out`."""
    return f"differences larger than {largest} are ruled out"


def same_method() -> Verdict:
    """Return the verdict on two names for one method."""
    return worded("same_method", "the same method (equal windows): any difference is noise")


def same_method_words(names: Sequence[str]) -> str:
    """Return the sentence on several names for one method."""
    return f"{' and '.join(names)} are the same method: their windows [l, u] are equal"


def uninformative(is_correct: bool) -> Verdict:
    """Return the verdict for arms whose answers are all correct, or, with `is_correct=False`, all wrong."""
    subject = "every answer of every arm" if is_correct else "no answer of any arm"
    return worded("uninformative", f"{subject} is correct, so these answers cannot show a difference")


def unfinished(kind: Literal["preliminary", "incomplete"], value: float, runs: Sequence[str]) -> Verdict:
    """Return a verdict that pending or failed runs may change.

    `runs` describes these runs, for example `study/atr-1 is still running`.
    """
    return worded(kind, f"{kind}: {', '.join(runs)}; {estimate(value)}")


def before_plan(value: float, num_seeds: int, num_planned: int) -> Verdict:
    """Return the verdict while fewer seeds are finished than planned; it states only an estimate."""
    label = f"{num_seeds} of {num_planned} planned seeds"
    return worded("planned", f"{label}: no verdict yet; {estimate(value)}", label)


def under_both_readings(by_score: Verdict, as_wrong: Verdict, diverged: Sequence[str]) -> Verdict:
    """Combine two verdicts that differ in how they count diverged runs.

    In `by_score`, diverged runs count with their scores; in `as_wrong`, they count as always wrong.
    `diverged` names these runs, for example `seed 3 of atr`. A difference is ruled out only if both verdicts
    rule it out.
    """
    listed = ", ".join(diverged)
    if not diverged:
        return by_score
    if by_score.kind == as_wrong.kind == "not_distinguishable":
        known = [one.excluded for one in (by_score, as_wrong) if one.excluded is not None]
        condition = f"whether the runs that diverged ({listed}) count with their scores or as always wrong, "
        return _not_distinguishable(max(known) if len(known) == 2 else None, condition)
    if by_score.kind == as_wrong.kind and by_score.withheld:
        if by_score.words == as_wrong.words:
            return by_score
        other = as_wrong.words.removeprefix(f"{by_score.label}; ")
        more = f"; with the runs that diverged ({listed}) as always wrong: {other}"
        return replace(by_score, words=by_score.words + more)
    if by_score.kind == as_wrong.kind:
        more = f"; it also holds if the runs that diverged ({listed}) count as always wrong: {as_wrong.words}"
        return replace(by_score, words=by_score.words + more)
    return worded(
        "depends_on_diverged",
        f"it depends on the runs that diverged ({listed}): with their recorded scores, {by_score.words}; "
        f"counted as always wrong, {as_wrong.words}".replace(_SCOPE, ""),
    )


def for_paper(
    verdict: Verdict,
    value: float,
    interval: tuple[float, float] | None,
    *,
    names: tuple[str, str],
    settings: str,
    measure: str,
    together: str,
) -> str:
    """Return the sentence for a paper, without the period. `names` lists the baseline first.

    If the verdict is withheld, the sentence says why nothing can be written. `settings` describes differences
    between the arms other than their methods, and `measure` names the compared score. `together` describes
    the family of differences over which the interval is simultaneous.
    """
    baseline, candidate = names
    if verdict.kind == "same_method":
        return same_method_words((candidate, baseline))
    if interval is None or verdict.withheld:
        return f"Nothing can be written about {candidate} and {baseline} as methods: {verdict.withheld}"
    level = "95 %"
    if verdict.names_difference:
        least, most = sorted(map(abs, interval))
        more = "more" if interval[0] > 0.0 else "fewer"
        said = f"{candidate} scores {points(abs(value))} {more} than {baseline}{settings}"
        level += f" interval {100.0 * least:.1f} to {100.0 * most:.1f}"
    elif verdict.excluded is None:
        said = f"{candidate} and {baseline}{settings} are not distinguishable; {_NONE_RULED_OUT}"
    else:
        said = f"Between {candidate} and {baseline}{settings} we find no difference of more than "
        said += points(verdict.excluded)
    return f"{said} in {measure} ({level}{together})"


def estimate(value: float) -> str:
    """Return a difference of shares as text: `estimated difference +3.1 points` for 0.031."""
    return f"estimated difference {signed(value)} points"


def points(share: float) -> str:
    """Format a share as points: `2.8 points`, `1 point`."""
    text = f"{100.0 * share:.1f}".removesuffix(".0")
    return f"{text} point{'' if text in ('1', '-1') else 's'}"


def signed(share: float) -> str:
    """Format a difference of shares in points, with its sign: `+2.1` for 0.021, or `0.0` without a sign."""
    text = f"{100.0 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")


def rounded_up(share: float) -> float:
    """Round a share up to the next multiple of 0.001 (a tenth of a point), so that it remains a bound."""
    return math.ceil(1000.0 * share - 1e-6) / 1000.0
