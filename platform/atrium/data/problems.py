"""Datasets, which are named and hashed collections of problems, and endless streams of training problems.

Nothing here depends on the source of the problems: the built-in task, a file, or the Hub.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atrium.base.errors import DataError
from atrium.base.records import Problem
from atrium.base.seeding import derive_seed


def content_hash(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 (hex) of every field of the problems, in order; equal data have equal hashes."""
    digest = hashlib.sha256()
    for problem in problems:
        row: list[object] = [problem.problem_id, problem.question, problem.answer, dict(problem.metadata)]
        if problem.turns or problem.verifier:  # hashes of problems without them stay the same
            row += [problem.turns, dict(problem.verifier)]
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A named collection of problems, with the hash of its content.

    Raises `DataError` if there are no problems or if a `problem_id` occurs twice.
    """

    name: str
    problems: tuple[Problem, ...]
    content_hash: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.problems:
            raise DataError(f"dataset '{self.name}' contains no problems; add at least one problem")
        seen: set[str] = set()
        for problem in self.problems:
            if problem.problem_id in seen:
                raise DataError(
                    f"dataset '{self.name}' contains the problem_id '{problem.problem_id}' twice; give "
                    "every problem its own problem_id"
                )
            seen.add(problem.problem_id)
        object.__setattr__(self, "content_hash", content_hash(self.problems))

    def __len__(self) -> int:
        return len(self.problems)


class ProblemStream:
    """An endless sequence of epochs, each a permutation of the problems determined by (seed, epoch).

    The stream stores no position: the problem at a cursor depends only on the problems and the seed, so a
    resumed run needs only its cursor. Raises `DataError` if there are no problems.
    """

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        if not problems:
            raise DataError("a problem stream must have at least one problem, got none")
        self._problems = tuple(problems)
        self._seed = seed

    def take(self, cursor: int, num: int) -> tuple[Problem, ...]:
        """Return the problems at positions `cursor` to `cursor + num - 1`.

        Raises `ValueError` if `cursor` or `num` is negative.
        """
        if cursor < 0 or num < 0:
            raise ValueError(f"cursor and num must be at least 0, got cursor={cursor} and num={num}")
        taken: list[Problem] = []
        while len(taken) < num:
            epoch, offset = divmod(cursor + len(taken), len(self._problems))
            order = self._permutation(epoch)[offset : offset + num - len(taken)]
            taken.extend(self._problems[index] for index in order)
        return tuple(taken)

    def _permutation(self, epoch: int) -> NDArray[np.intp]:
        # Sorting random keys: NumPy guarantees PCG64's doubles across its versions, but not its shuffles.
        generator = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "epoch", epoch)))
        return np.argsort(generator.random(len(self._problems)), kind="stable")
