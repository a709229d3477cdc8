"""Problems of reasoning-gym: generated in a separate process, in disjoint parts.

Each part has its own seeds, and no question of one part is in another: a small task may generate the same
problem from several seeds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from atrium.assemble.references import Loading, check_references
from atrium.base.errors import DataError
from atrium.base.records import Problem
from atrium.base.seeding import derive_seed
from atrium.config.tasks import ReasoningGymDatasetConfig
from atrium.data.problem_sets import Origin
from atrium.data.problems import Dataset
from atrium.data.splits import Splits
from atrium.grading.procedural import FIELD, PACKAGE, installed_version
from atrium.grading.verifiers import Verifier

_Ask = Callable[[dict[str, Any]], dict[str, str]]
"""Sends the settings of a problem to the generating process, and returns the problem."""
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2].split(sys.argv[1]); "
    "from atrium.grading.procedural import serve; serve()"
)
_SEEDS_PER_PART = 10**9  # three parts below 2**32, the limit of numpy's generators
_MAX_REDRAWS = 200
"""Number of consecutive seeds with a taken question after which the task counts as exhausted."""
_SHOWN_EVERY = 10


def procedural_problems(
    dataset: ReasoningGymDatasetConfig, verifier: Verifier, loading: Loading
) -> tuple[Splits, Origin]:
    """Load the three parts, without problems whose reference the scorer refuses, and their origin.

    Raises `DataError` for a task or settings that the package refuses, and if it has too few problems.
    """
    revision = f"{PACKAGE} {installed_version()}"
    splits = procedural_splits(dataset, loading)
    problems = [problem for part in splits.parts for problem in part.problems]
    recorded, warnings, num_unchecked = loading.unreadable.get("dataset"), [], 0
    if recorded is None:
        check = check_references(problems, verifier, loading, dataset.name)
        recorded = [problem.problem_id for problem, _ in check.unreadable]
        num_unchecked = len(check.unknown)
    if recorded:
        warnings.append(f"{len(recorded)} problems are dropped, since the scorer refuses their own reference")
    for warning in warnings:
        loading.log(f"{dataset.name}: {warning}")
    dropped = set(recorded)
    train, validation, *test = (_without(part, dropped) for part in splits.parts)
    origin = Origin(
        source=f"reasoning_gym/{dataset.task}",
        revision=revision,
        num_problems=len(train),
        num_unreadable=len(dropped),
        num_unchecked=num_unchecked,
        unreadable=tuple(recorded),
        warnings=tuple(warnings),
    )
    return Splits(train=train, validation=validation, test=test[0] if test else None), origin


def _without(part: Dataset, dropped: set[str]) -> Dataset:
    kept = tuple(problem for problem in part.problems if problem.problem_id not in dropped)
    if not kept:
        raise DataError(
            f"{part.name}: the scorer refuses the reference of every problem; choose another task"
        )
    return Dataset(name=part.name, problems=kept)


def procedural_splits(dataset: ReasoningGymDatasetConfig, loading: Loading) -> Splits:
    """Generate the three parts; no question of one part occurs in another.

    Raises `DataError` for a task or settings that the package refuses, and if it has too few problems.
    """
    taken: set[str] = set()
    parts: dict[str, Dataset] = {}
    sizes = {"test": dataset.num_test, "validation": dataset.num_validation, "train": dataset.num_train}
    loading.listener.phase(f"generating {dataset.task}", sum(sizes.values()))
    with generator() as ask:
        for place, (part, num) in enumerate(sizes.items()):
            problems = []
            for problem in _draw(dataset, part, place, num, taken, ask):
                problems.append(problem)
                if len(problems) % _SHOWN_EVERY == 0:
                    loading.listener.advance(_SHOWN_EVERY)
            if problems:
                parts[part] = Dataset(name=f"{dataset.name}-{part}", problems=tuple(problems))
    return Splits(train=parts["train"], validation=parts["validation"], test=parts.get("test"))


def _draw(
    dataset: ReasoningGymDatasetConfig, part: str, place: int, num: int, taken: set[str], ask: _Ask
) -> Iterator[Problem]:
    """Yield the problems of one part, and add their questions to `taken`."""
    seed = (
        derive_seed(dataset.seed, "reasoning_gym", dataset.task) % _SEEDS_PER_PART + place * _SEEDS_PER_PART
    )
    num_found = num_redrawn = 0
    while num_found < num:
        named = {
            "task": dataset.task,
            "difficulty": dataset.difficulty,
            "options": {
                key: list(one) if isinstance(one, tuple) else one for key, one in dataset.options.items()
            },
            "seed": seed,
        }
        reply = ask(named)
        seed += 1
        if reply["question"] in taken:
            num_redrawn += 1
            if num_redrawn > _MAX_REDRAWS:
                raise DataError(
                    f"dataset.task={dataset.task}: almost no questions remain after {len(taken)}; lower "
                    f"num_train, num_validation or num_test (num_{part}={num}), or raise the difficulty"
                )
            continue
        taken.add(reply["question"])
        num_found, num_redrawn = num_found + 1, 0
        yield Problem(
            problem_id=f"{part}-{num_found - 1:05d}",
            question=reply["question"],
            answer=reply["answer"],
            verifier={FIELD: {**named, "question_sha256": reply["sha256"]}},
        )


def _reply(process: subprocess.Popen[str], named: dict[str, Any]) -> dict[str, str]:
    """Return the problem that the process generates. Raises `DataError` if it refuses or has exited."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(named) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise DataError(f"dataset.task={named['task']}: the generator of {PACKAGE} crashed")
    reply: dict[str, str] = json.loads(line)
    if "error" in reply:
        raise DataError(reply["error"])
    return reply


@contextmanager
def generator() -> Iterator[_Ask]:
    """Start the generating process, which ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _BOOT, os.pathsep, os.pathsep.join(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"},
    ) as process:
        try:
            yield partial(_reply, process)
        finally:
            process.kill()
