"""Division of a dataset into training, validation and test problems, and keys that identify questions.

Two questions count as the same if they differ only in white space, dollar signs, LaTeX for spacing and size,
Unicode form, and final punctuation. Problems are ranked by a hash of the seed and the question. Splits
therefore do not depend on the order of the rows, and adding or removing rows moves few problems to another
split.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from atrium.base.errors import DataError
from atrium.base.records import Problem
from atrium.data.problems import Dataset

_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|quad|qquad|limits)(?![A-Za-z])|\\[,;:! ()\[\]]|[\s$~]"
)
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Disjoint sets of training, validation (selection) and test (reporting) problems.

    `test` is None if the dataset holds out no test problems.
    """

    train: Dataset
    validation: Dataset
    test: Dataset | None

    @property
    def parts(self) -> tuple[Dataset, ...]:
        """The training, validation and, if it exists, test problems."""
        return (self.train, self.validation, *([self.test] if self.test else []))


def question_key(question: str) -> str:
    """Return a key that is equal for questions that differ only in layout and in final punctuation."""
    text = _FRACTION.sub(r"\\frac", unicodedata.normalize("NFKC", question))
    return _LAYOUT.sub("", text).rstrip(".?!:")


def split_problems(
    name: str,
    problems: Sequence[Problem],
    *,
    num_train: int | None,
    num_validation: int,
    num_test: int,
    seed: int,
) -> Splits:
    """Split problems with distinct questions into three parts, each in the order of the file.

    With `num_train=None`, all remaining problems are training problems. Raises `DataError` if there are fewer
    problems than requested, or none for training or validation.
    """
    check_sizes(name, len(problems), num_train, num_validation, num_test)
    num_held = num_validation + num_test
    ranked = sorted(range(len(problems)), key=lambda index: _hash(seed, problems[index].question))
    test, validation, train = ranked[:num_test], ranked[num_test:num_held], ranked[num_held:][:num_train]
    return Splits(
        train=_part(f"{name}-train", problems, train),
        validation=_part(f"{name}-validation", problems, validation),
        test=_part(f"{name}-test", problems, test) if test else None,
    )


def check_sizes(name: str, num: int, num_train: int | None, num_validation: int, num_test: int) -> None:
    """Raise `DataError`, suggesting smaller parts, if `num` problems are too few for the three parts."""
    if num < num_validation + num_test + (1 if num_train is None else num_train):
        to_train = "nothing" if num_train is None else f"fewer than num_train={num_train}"
        room = (num - (num_train or 0)) // 5
        fitting = f"num_validation={min(num_validation, room)} num_test={min(num_test, room)}"
        raise DataError(
            f"dataset '{name}' has {num} problems, of which num_validation={num_validation} and num_test="
            f"{num_test} leave {to_train} for training; {f'set {fitting}' if room > 0 else 'add problems'}"
        )


def _part(name: str, problems: Sequence[Problem], indices: Sequence[int]) -> Dataset:
    return Dataset(name=name, problems=tuple(problems[index] for index in sorted(indices)))


def _hash(seed: int, question: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{question_key(question)}".encode()).digest()
