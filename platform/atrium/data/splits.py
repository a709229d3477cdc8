r"""Identity of questions, and the assignment of problems to the parts of a dataset.

Two questions are the same if they differ only in spacing and in LaTeX for spacing and size. The parts of a
dataset follow from a keyed hash of each question: they do not depend on the order of the rows, and hardly on
the other rows.
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
    """Training, validation (selection) and test (reporting) problems; all disjoint.

    `test` is None if the dataset holds out no test problems.
    """

    train: Dataset
    validation: Dataset
    test: Dataset | None

    @property
    def parts(self) -> tuple[Dataset, ...]:
        """Return the existing parts: train, validation, test."""
        return (self.train, self.validation, *([self.test] if self.test else []))


def question_key(question: str) -> str:
    """Return a key that is equal for questions that differ only in layout."""
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

    `num_train=None` takes all remaining problems. Raises `DataError` if there are too few.
    """
    num_held = num_validation + num_test
    num_wanted = num_held + (1 if num_train is None else num_train)
    if len(problems) < num_wanted:
        to_train = "nothing" if num_train is None else f"fewer than num_train={num_train}"
        raise DataError(
            f"dataset '{name}' has {len(problems)} problems: num_validation={num_validation} and "
            f"num_test={num_test} leave {to_train} to train on; lower them"
        )
    ranked = sorted(range(len(problems)), key=lambda index: _hash(seed, problems[index].question))
    test, validation = ranked[:num_test], ranked[num_test:num_held]
    train = ranked[num_held:] if num_train is None else ranked[num_held:num_wanted]
    return Splits(
        train=_part(f"{name}-train", problems, train),
        validation=_part(f"{name}-validation", problems, validation),
        test=_part(f"{name}-test", problems, test) if test else None,
    )


def _part(name: str, problems: Sequence[Problem], indices: Sequence[int]) -> Dataset:
    return Dataset(name=name, problems=tuple(problems[index] for index in sorted(indices)))


def _hash(seed: int, question: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{question_key(question)}".encode()).digest()
