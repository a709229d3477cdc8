"""Maj@k: the probability that the most frequent of k sampled answers to a problem is correct.

Two answers count as the same if the grader finds them equal, regardless of their notation. All correct
answers equal the reference answer, so only wrong answers are compared with each other, and only if the
comparison can change the winner for one of the requested k. Ties are broken at random, so the value of a
problem may be a fraction. For k < K, the value is the exact mean over all subsets of k samples. With more
than 1,000 samples, computing this mean would exceed the range of double precision, so only k = K is computed.

Source: self-consistency, arXiv 2203.11171. Axes: P problems, K samples per problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from atrium.base.records import EvaluatedSample, FinishReason, Floats, Verdict, VerdictKind

Compare = Callable[[str, str], Future[Verdict]]
"""A function that starts a comparison of two extracted answers; `correct` means that they are equal."""

_MAX_COMPARED = 64
"""Maximum number of different wrong answers per problem that are compared; the most frequent are chosen."""


def majority_at(
    samples_PK: Sequence[Sequence[EvaluatedSample]],
    ks: Iterable[int],
    *,
    require_stop: bool,
    compare: Compare,
) -> dict[int, Floats]:
    """Return, for each k in `ks`, an array [P] with each problem's Maj@k, in [0, 1].

    A problem without any answer has the value 0. Samples without an answer do not vote. With
    `require_stop`, truncated samples do not vote either. An answer that could not be graded counts as
    wrong. With more than 1,000 samples per problem, each k below K is left out.
    """
    num_samples = max(map(len, samples_PK))
    ks = [k for k in ks if k == num_samples or num_samples <= _MAX_SUBSETS_OF]
    has_smaller_k = any(2 < k < num_samples for k in ks)
    votes_P = [_votes(samples_K, require_stop=require_stop) for samples_K in samples_PK]
    comparisons_P = [_comparisons(votes, compare, has_smaller_k=has_smaller_k) for votes in votes_P]
    merged_P = [
        (votes.num_correct, tuple(sorted(_merged(votes.wrong, comparisons))), len(samples_K))
        for votes, comparisons, samples_K in zip(votes_P, comparisons_P, samples_PK, strict=True)
    ]
    return {k: np.array([_share_of_wins(*merged, k) for merged in merged_P]) for k in ks}


_MAX_SUBSETS_OF = 1_000


class _Votes(NamedTuple):
    """The number of votes for the correct answer, and a counter of the votes for each wrong answer's text."""

    num_correct: int
    wrong: Counter[str]


_Comparisons = dict[tuple[str, str], Future[Verdict]]


def _votes(samples_K: Sequence[EvaluatedSample], *, require_stop: bool) -> _Votes:
    voters = [
        sample
        for sample in samples_K
        if sample.extracted is not None and (sample.finish_reason is FinishReason.STOP or not require_stop)
    ]
    wrong = Counter(str(s.extracted) for s in voters if s.verdict is not VerdictKind.CORRECT)
    return _Votes(len(voters) - wrong.total(), wrong)


def _comparisons(votes: _Votes, compare: Compare, *, has_smaller_k: bool) -> _Comparisons:
    """Start comparing wrong answers with each other if this can change the winner; return futures by pair.

    `has_smaller_k` is True if a k with 2 < k < K is requested: in a subset of k samples, two equal wrong
    answers can beat a single correct one. If it is False, answers are compared only when the numbers of votes
    do not already decide the winner of all K samples. If the correct answer has no vote, nothing is compared
    in either case. Only the 64 most frequent wrong answers are compared.
    """
    most = max(votes.wrong.values(), default=0)
    if votes.num_correct == 0 or not (has_smaller_k or most <= votes.num_correct <= votes.wrong.total()):
        return {}
    answers = [answer for answer, _ in votes.wrong.most_common(_MAX_COMPARED)]
    return {pair: compare(*pair) for pair in combinations(answers, 2)}


def _merged(wrong: Counter[str], comparisons: _Comparisons) -> list[int]:
    """Return the number of votes of each wrong answer, after merging equal answers."""
    first = {answer: answer for answer in wrong}

    def first_of(answer: str) -> str:
        while first[answer] != answer:
            answer = first[answer]
        return answer

    for (one, other), verdict in comparisons.items():
        if verdict.result().is_correct:
            first[first_of(other)] = first_of(one)
    totals: Counter[str] = Counter()
    for answer, num in wrong.items():
        totals[first_of(answer)] += num
    return list(totals.values())


@lru_cache(maxsize=4_096)
def _share_of_wins(num_correct: int, num_wrong: tuple[int, ...], num_samples: int, k: int) -> float:
    """Return the probability that the correct answer wins among k samples drawn without replacement.

    `num_wrong` contains the number of votes of each wrong answer. Samples that are counted neither in
    `num_correct` nor in `num_wrong` have no vote. For k below `num_samples`, sums over the number c of
    correct samples drawn. `ways[x, t]` counts the draws of x samples that are not correct in which no wrong
    answer has more than c votes, and exactly t wrong answers have c votes. The correct answer then wins with
    probability 1 / (t + 1).
    """
    if k >= num_samples:
        most = max((num_correct, *num_wrong))
        return 1.0 / (1 + num_wrong.count(most)) if num_correct == most > 0 else 0.0
    num_silent = num_samples - num_correct - sum(num_wrong)
    wins = 0.0
    for c in range(1, min(k, num_correct) + 1):
        ways = np.zeros((k - c + 1, len(num_wrong) + 1))
        for x in range(min(k - c, num_silent) + 1):
            ways[x, 0] = comb(num_silent, x)
        for size in num_wrong:
            drawn = np.zeros_like(ways)
            for x in range(min(c, size, k - c) + 1):
                share = comb(size, x) * ways[: k - c + 1 - x]
                if x < c:
                    drawn[x:] += share
                else:
                    drawn[x:, 1:] += share[:, :-1]
            ways = drawn
        wins += comb(num_correct, c) * float((ways[k - c] / np.arange(1, len(num_wrong) + 2)).sum())
    return min(wins / comb(num_samples, k), 1.0)  # rounding may put a certain win above 1
