"""Detection of training problems that also appear in a benchmark, by equal questions or shared words.

Sources: open-r1 flags a problem that shares any 8 consecutive words with a benchmark (`num_words=8`,
`min_common_frac=0`). Qwen2.5-Math requires 13 shared consecutive words, and a longest common subsequence with
a relative length above 0.6 (arXiv 2409.12122, section on decontamination; these numbers were not checked
against the paper). Unlike both, this module treats numbers, signs and LaTeX commands as separate words,
regardless of spacing, and divides the length of the longest common subsequence by the length of the longer
question.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atrium.base.records import Problem
from atrium.base.section import Count, Frac, Section
from atrium.data.splits import question_key

_WORD = re.compile(r"\\?[a-z]+|[0-9]+|[^\sa-z0-9$~{}\\]")
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle)(?![a-z])")

_Held = tuple[str, str]


class Contamination(Section):
    """The rule that decides whether a training problem counts as a repetition of a benchmark problem."""

    num_words: Count | None
    """Number of consecutive words (including numbers and signs) that two overlapping questions share; null:
    only equal questions overlap."""
    min_common_frac: Frac
    """Minimum length of the longest common subsequence of words, as a share of the longer question; 0: no
    minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A training problem, the benchmark problem that it repeats (`held_id`), and the words they share.

    `shared` contains the first shared run of words, or `the same question` if the questions are equal.
    """

    problem_id: str
    benchmark: str
    held_id: str
    shared: str


def find_overlaps(
    problems: Sequence[Problem], benchmarks: Mapping[str, Sequence[Problem]], rule: Contamination
) -> tuple[Overlap, ...]:
    """Return the training problems that repeat a benchmark problem, each with the first match."""
    held = {(name, one.problem_id): one.question for name, several in benchmarks.items() for one in several}
    by_key = {question_key(question): key for key, question in reversed(held.items())}
    words = {key: _words(question) for key, question in held.items()}
    runs: dict[tuple[str, ...], list[_Held]] = defaultdict(list)
    for key, own in words.items() if rule.num_words else ():
        for run in _runs(own, rule.num_words or 0):
            runs[run].append(key)
    overlaps = []
    for problem in problems:
        same = by_key.get(question_key(problem.question))
        shared, place = (
            ("the same question", same) if same else _shared_run(problem.question, words, runs, rule)
        )
        if place:
            overlaps.append(
                Overlap(problem_id=problem.problem_id, benchmark=place[0], held_id=place[1], shared=shared)
            )
    return tuple(overlaps)


def _words(question: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(_LAYOUT.sub(" ", question.lower())))


def _runs(words: tuple[str, ...], length: int) -> Iterator[tuple[str, ...]]:
    return (words[start : start + length] for start in range(len(words) - length + 1))


def _shared_run(
    question: str,
    held_words: Mapping[_Held, tuple[str, ...]],
    runs: Mapping[tuple[str, ...], list[_Held]],
    rule: Contamination,
) -> tuple[str, _Held | None]:
    own = _words(question) if runs else ()
    refused: set[_Held] = set()
    for run in _runs(own, rule.num_words or 0):
        for place in runs.get(run, ()):
            if place not in refused and _common_frac(own, held_words[place]) >= rule.min_common_frac:
                return " ".join(run), place
            refused.add(place)
    return "", None


def _common_frac(one: Sequence[str], other: Sequence[str]) -> float:
    """Return the length of the longest common subsequence divided by the length of the longer sequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for index, other_word in enumerate(other, start=1):
            above = row[index]
            row[index] = before + 1 if word == other_word else max(above, row[index - 1])
            before = above
    return row[-1] / max(len(one), len(other))
