"""Maj@K: what the most frequent answer to each problem is worth, equal answers counted together.

Two answers are the same vote where the grader finds them equal, however they are written. All answers
equal to the gold answer are one vote, so only wrong answers are compared with each other, and only where
the comparison can change who wins. Of several most frequent answers one is drawn: a problem is then worth
the probability that the right one is drawn.

Source: self-consistency, arXiv 2203.11171. Axes: P problems, K samples per problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import combinations
from typing import NamedTuple

import numpy as np

from atrium.evaluation.estimates import Values
from atrium.records import EvaluatedSample, FinishReason, Verdict, VerdictKind

Compare = Callable[[str, str], Future[Verdict]]
"""Starts comparing two extracted answers; `correct` means that they are equal."""

_MAX_COMPARED = 64
"""Of more wrong answers than this to one problem, the most frequent are compared."""


def majority_at_k(
    samples_PK: Sequence[Sequence[EvaluatedSample]], *, require_stop: bool, compare: Compare
) -> Values:
    """Maj@K of each problem [P], in [0, 1]; 0 where no sample has an answer.

    Samples without an answer do not vote, nor do truncated ones under `require_stop`. An answer that could
    not be graded votes as a wrong one.
    """
    votes_P = [_counted(samples_K, require_stop=require_stop) for samples_K in samples_PK]
    comparisons_P = [_comparisons(votes, compare) for votes in votes_P]
    return np.array(
        [
            _share_of_draws(votes.num_correct, _merged(votes.wrong, comparisons))
            for votes, comparisons in zip(votes_P, comparisons_P, strict=True)
        ]
    )


class _Votes(NamedTuple):
    """How often the right answer was given, and how often each wrong text."""

    num_correct: int
    wrong: Counter[str]


_Comparisons = dict[tuple[str, str], Future[Verdict]]


def _counted(samples_K: Sequence[EvaluatedSample], *, require_stop: bool) -> _Votes:
    voters = [
        sample
        for sample in samples_K
        if sample.extracted is not None and (sample.finish_reason is FinishReason.STOP or not require_stop)
    ]
    wrong = Counter(str(s.extracted) for s in voters if s.verdict is not VerdictKind.CORRECT)
    return _Votes(len(voters) - wrong.total(), wrong)


def _comparisons(votes: _Votes, compare: Compare) -> _Comparisons:
    """The comparisons of wrong answers, where adding them up could beat or reach the right answer."""
    most = max(votes.wrong.values(), default=0)
    if not most <= votes.num_correct <= votes.wrong.total() or votes.num_correct == 0:
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


def _share_of_draws(num_correct: int, num_wrong: Sequence[int]) -> float:
    most = max((num_correct, *num_wrong))
    if num_correct == 0 or num_correct < most:
        return 0.0
    return 1.0 / (1 + num_wrong.count(most))
