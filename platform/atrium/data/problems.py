"""Datasets: named, hashed collections of problems, and the endless order of training.

The source of the problems (the built-in task, a file, the Hub) is not known here.
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
    """Problems under one name, with the hash of their content.

    Raises `DataError` if it is empty or a `problem_id` occurs twice.
    """

    name: str
    problems: tuple[Problem, ...]
    content_hash: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.problems:
            raise DataError(f"dataset '{self.name}' contains no problems; give it at least one")
        seen: set[str] = set()
        for problem in self.problems:
            if problem.problem_id in seen:
                raise DataError(
                    f"dataset '{self.name}' contains problem_id '{problem.problem_id}' twice; give every "
                    "problem its own"
                )
            seen.add(problem.problem_id)
        object.__setattr__(self, "content_hash", content_hash(self.problems))

    def __len__(self) -> int:
        return len(self.problems)


class ProblemStream:
    """An endless concatenation of epochs, each a permutation of the problems keyed by (seed, epoch).

    The stream has no position: the problem at a cursor depends only on the problems and the seed, so a
    resumed run continues from its cursor alone. Raises `DataError` without problems.
    """

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        if not problems:
            raise DataError("a problem stream needs at least one problem to draw from")
        self._problems = tuple(problems)
        self._seed = seed

    def take(self, cursor: int, num: int) -> tuple[Problem, ...]:
        """Return the problems at positions `cursor` to `cursor + num - 1`; both are at least 0."""
        if cursor < 0 or num < 0:
            raise ValueError(f"cursor and num must be at least 0, got {cursor} and {num}")
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
