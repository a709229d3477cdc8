r"""The built-in task "chain": sums of one-digit operands, such as `7+8-4+3=`, at several levels.

An operand is 1 to 9, an operation is + or -, and every partial result is at least 0. The level is the number
of operands. A worked solution writes out each step and boxes the result: `7+8=15;15-4=11;11+3=14;\boxed{14}`.
The module also generates solutions and answers with random errors, for demonstrations that contain mistakes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Set
from functools import lru_cache
from itertools import accumulate, islice, pairwise

from atrium.base.errors import ConfigError
from atrium.base.records import Problem
from atrium.base.seeding import derive_seed
from atrium.data.problems import Dataset
from atrium.data.settings import ArithmeticSettings
from atrium.data.splits import Splits

_DIGITS = range(1, 10)
_TERM = re.compile(r"[+-]?[1-9]")
_QUESTION = re.compile(r"[1-9]([+-][1-9])+=")
_ERRORS = (-2, -1, 1, 2)
_MAX_REDRAWS = 2_000
"""Maximum number of draws for one new question; if all of them are in use, the level counts as exhausted."""


@lru_cache(maxsize=2)  # runs of one sweep share a process and a task
def arithmetic_splits(settings: ArithmeticSettings) -> Splits:
    """Draw the training, validation and test splits; no question occurs in two splits.

    Levels are drawn uniformly. Validation and test questions are distinct; training questions are drawn with
    replacement. Raises `ConfigError` if `min_operands` is above `max_operands`, or if a level has too few
    questions for the held-out splits.
    """
    settings.check()
    test, validation = _held_out(settings)
    train = islice(draw_questions(settings, "train"), settings.num_train)
    return Splits(
        train=_dataset("train", list(train)),
        validation=_dataset("validation", validation),
        test=_dataset("test", test),
    )


def held_out_questions(settings: ArithmeticSettings) -> frozenset[str]:
    """Return the questions of the validation and test splits, which must not be trained on."""
    test, validation = _held_out(settings)
    return frozenset(test) | frozenset(validation)


def draw_questions(settings: ArithmeticSettings, purpose: str) -> Iterator[str]:
    """Yield an endless stream of training questions, drawn with replacement.

    Held-out questions are excluded. The stream depends only on the settings and on `purpose`, so different
    purposes have independent streams.
    """
    rng = random.Random(derive_seed(settings.seed, "arithmetic", purpose))
    taken = held_out_questions(settings)
    while True:
        yield _draw_new(rng, settings, taken)


def solution(question: str) -> str:
    r"""Return the worked solution of a question, such as `7+8=15;15-4=11;\boxed{11}` for `7+8-4=`.

    Raises `ValueError` if the text is not a question of the task.
    """
    return _worked(_terms(question), list(_partial_results(question)))


def slipping_solution(question: str, rng: random.Random, *, slip_frac: float) -> str:
    """Return a worked solution in which each step is wrong by 1 or 2 with probability `slip_frac`.

    Later steps continue from the wrong result. Errors that would make the result of the step or of a later
    step negative are excluded.
    """
    results = list(_partial_results(question))
    for index in range(1, len(results)):
        if rng.random() < slip_frac:
            error = _draw_error(rng, lowest=min(results[index:]))
            results[index:] = [result + error for result in results[index:]]
    return _worked(_terms(question), results)


def guessed_answer(question: str, rng: random.Random, *, error_frac: float) -> str:
    """Return a boxed answer without steps.

    With probability `error_frac`, the answer is wrong by 1 or 2. It is never below 0.
    """
    answer = _partial_results(question)[-1]
    if rng.random() < error_frac:
        answer += _draw_error(rng, lowest=answer)
    return _boxed(answer)


def _held_out(settings: ArithmeticSettings) -> tuple[list[str], list[str]]:
    taken: set[str] = set()
    splits: list[list[str]] = []
    for purpose, num in (("test", settings.num_test), ("validation", settings.num_validation)):
        rng = random.Random(derive_seed(settings.seed, "arithmetic", purpose))
        questions: list[str] = []
        for _ in range(num):
            questions.append(_draw_new(rng, settings, taken))
            taken.add(questions[-1])
        splits.append(questions)
    return splits[0], splits[1]


def _draw_new(rng: random.Random, settings: ArithmeticSettings, taken: Set[str]) -> str:
    """Draw a level uniformly, then questions of that level until one is not in `taken`.

    Raises `ConfigError` if almost all questions of the level are taken.
    """
    level = settings.min_operands + _below(rng, settings.max_operands - settings.min_operands + 1)
    for _ in range(_MAX_REDRAWS):
        question = _draw_question(rng, level)
        if question not in taken:
            return question
    raise ConfigError(
        f"dataset: too few questions with {level} operands remain after the held-out questions; lower "
        "num_validation or num_test, or raise min_operands or max_operands"
    )


def _draw_question(rng: random.Random, level: int) -> str:
    value = _DIGITS[_below(rng, len(_DIGITS))]
    parts = [str(value)]
    for _ in range(level - 1):
        # Every legal move (a sign and a digit) is equally likely.
        num_minus = min(value, len(_DIGITS))
        move = _below(rng, len(_DIGITS) + num_minus)
        if move < len(_DIGITS):
            digit = _DIGITS[move]
            parts.append(f"+{digit}")
            value += digit
        else:
            digit = _DIGITS[move - len(_DIGITS)]
            parts.append(f"-{digit}")
            value -= digit
    return "".join(parts) + "="


def _below(rng: random.Random, bound: int) -> int:
    # Python guarantees the same stream across its versions only for `random()`, not for `randrange`.
    return int(rng.random() * bound)


def _draw_error(rng: random.Random, *, lowest: int) -> int:
    allowed = [error for error in _ERRORS if lowest + error >= 0]
    return allowed[_below(rng, len(allowed))]


def _terms(question: str) -> list[str]:
    terms = _TERM.findall(question)
    if not _QUESTION.fullmatch(question) or min(accumulate(map(int, terms))) < 0:
        raise ValueError(f"expected a question of the chain task, got {question!r}")
    return terms


def _partial_results(question: str) -> tuple[int, ...]:
    return tuple(accumulate(int(term) for term in _terms(question)))


def _worked(terms: list[str], results: list[int]) -> str:
    steps = [
        f"{before}{term}={after};" for term, (before, after) in zip(terms[1:], pairwise(results), strict=True)
    ]
    return "".join(steps) + _boxed(results[-1])


def _boxed(value: int) -> str:
    return f"\\boxed{{{value}}}"


def _dataset(split: str, questions: list[str]) -> Dataset:
    return Dataset(
        name=f"arithmetic-{split}",
        problems=tuple(
            Problem(
                problem_id=f"{split}-{index:05d}",
                question=question,
                answer=str(_partial_results(question)[-1]),
                metadata={"level": str(len(_terms(question)))},
            )
            for index, question in enumerate(questions)
        ),
    )
