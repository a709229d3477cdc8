"""Problems of reasoning-gym, generated in a separate process and divided into disjoint parts.

Each part has its own random seeds. Since a small task may generate the same problem from several seeds,
repeated questions are dropped, so that no question occurs twice.
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
"""A function that sends the settings of a problem to the generating process and returns the problem."""
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2].split(sys.argv[1]); "
    "from atrium.grading.procedural import serve; serve()"
)
_SEEDS_PER_PART = 10**9  # three parts below 2**32, the limit of numpy's generators
_MAX_REDRAWS = 200
"""Number of repeated questions in a row after which no new questions are expected from the task."""
_SHOWN_EVERY = 10


def procedural_problems(
    dataset: ReasoningGymDatasetConfig, verifier: Verifier, loading: Loading
) -> tuple[Splits, Origin]:
    """Return training, validation and test problems, and their origin.

    Problems whose reference answer the task's scorer rejects are dropped. Raises `DataError` if the package
    is not installed or rejects the task or its settings, if the task has too few different problems, and if
    the scorer rejects all problems of a part.
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
        warnings.append(f"{len(recorded)} problems are dropped, since the scorer rejects their references")
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
            f"{part.name}: the scorer rejects the reference answer of every problem; choose another task"
        )
    return Dataset(name=part.name, problems=kept)


def procedural_splits(dataset: ReasoningGymDatasetConfig, loading: Loading) -> Splits:
    """Generate training, validation and test problems without repeated questions.

    Raises `DataError` if the package rejects the task or its settings, and if the task has too few different
    problems.
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
    """Yield `num` problems whose questions are not in `taken`, and add their questions to `taken`.

    `part` is the name of a part of the dataset, and `place` its index, which determines its random seeds.
    """
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
                    f"dataset.task={dataset.task} generates almost no new questions after the "
                    f"first {len(taken)}, too few for num_{part}={num}; lower num_train, num_validation or "
                    "num_test, or raise the difficulty"
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
    """Return the problem that `process` generates from the settings in `named`.

    Raises `DataError` if the process reports an error or has exited.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(named) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise DataError(
            f"dataset.task={named['task']}: the generator of {PACKAGE} crashed; choose another task"
        )
    reply: dict[str, str] = json.loads(line)
    if "error" in reply:
        raise DataError(reply["error"])
    return reply


@contextmanager
def generator() -> Iterator[_Ask]:
    """Start the generating process, and yield a function that requests problems from it.

    The process is killed at the end of the `with` statement.
    """
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
