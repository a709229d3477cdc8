"""Maj@k: what the most frequent of k answers to each problem is worth, equal answers counted together.

Two answers are the same vote where the grader finds them equal, however they are written. All answers
equal to the gold answer are one vote, so only wrong answers are compared with each other, and only where
the comparison can change who wins among one of the k that are asked for. Of several most frequent answers
one is drawn: a problem is then worth the probability that the right one is drawn. Below K it is the mean over
all subsets of k samples, exactly; of more than 1,000 samples that is beyond double precision, and there is no
value below K.

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

from atrium.base.records import EvaluatedSample, FinishReason, Verdict, VerdictKind
from atrium.stats.estimates import Values

Compare = Callable[[str, str], Future[Verdict]]
"""Starts comparing two extracted answers; `correct` means that they are equal."""

_MAX_COMPARED = 64
"""Of more different wrong answers than this to one problem, the most frequent are compared."""


def majority_at(
    samples_PK: Sequence[Sequence[EvaluatedSample]],
    ks: Iterable[int],
    *,
    require_stop: bool,
    compare: Compare,
) -> dict[int, Values]:
    """Maj@k of each problem [P], in [0, 1], for each k from 1 to K; 0 where no sample has an answer.

    Samples without an answer do not vote, nor do truncated ones under `require_stop`. An answer that could
    not be graded votes as a wrong one.
    """
    num_samples = max(map(len, samples_PK))
    ks = [k for k in ks if k == num_samples or num_samples <= _MAX_SUBSETS_OF]
    below = any(2 < k < num_samples for k in ks)
    votes_P = [_votes(samples_K, require_stop=require_stop) for samples_K in samples_PK]
    comparisons_P = [_comparisons(votes, compare, below=below) for votes in votes_P]
    merged_P = [
        (votes.num_correct, tuple(sorted(_merged(votes.wrong, comparisons))), len(samples_K))
        for votes, comparisons, samples_K in zip(votes_P, comparisons_P, samples_PK, strict=True)
    ]
    return {k: np.array([_share_of_wins(*merged, k) for merged in merged_P]) for k in ks}


_MAX_SUBSETS_OF = 1_000


class _Votes(NamedTuple):
    """How often the right answer was given, and how often each wrong text."""

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


def _comparisons(votes: _Votes, compare: Compare, *, below: bool) -> _Comparisons:
    """The comparisons of wrong answers, where adding them up could beat or reach the right answer.

    Among all samples that depends on the votes; `below` says that some three or more of them are looked at,
    where two equal wrong answers beat a single right one.
    """
    most = max(votes.wrong.values(), default=0)
    if votes.num_correct == 0 or not (below or most <= votes.num_correct <= votes.wrong.total()):
        return {}
    answers = [answer for answer, _ in votes.wrong.most_common(_MAX_COMPARED)]
    return {pair: compare(*pair) for pair in combinations(answers, 2)}


def _merged(wrong: Counter[str], comparisons: _Comparisons) -> list[int]:
    """The number of votes of each wrong answer, equal ones added up."""
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
    """The probability that the right answer wins among k of the samples, drawn without replacement.

    Summed over the number c of right ones drawn: `ways[x, t]` counts the draws of x others in which no wrong
    answer has more than c votes and t have as many, each of which shares the win.
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
    return min(wins / comb(num_samples, k), 1.0)  # a certain win may come out as 1 and a rounding
