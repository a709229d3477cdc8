"""Tasks of the package reasoning-gym: problem generators, and a verifier that calls each task's scorer.

A problem is identified by its task, difficulty, other generator settings and seed. A worker process generates
the problem again from these values, so that the scorer receives the generator's own objects. A hash of the
question detects a version of the package that generates a different problem.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from importlib import metadata
from typing import Any, ClassVar, Literal

from pydantic import JsonValue

from atrium.base.errors import DataError, install_command, reason_of
from atrium.grading import equivalence
from atrium.grading.equivalence import Finding
from atrium.grading.verifiers import ExpressionVerifier

PACKAGE = "reasoning-gym"
FIELD = "reasoning_gym"
"""Name of the verifier value that identifies a problem."""
_INSTALL = f"is not installed; run {install_command('tasks')}"
_MAX_LISTED = 12


class ReasoningGymVerifier(ExpressionVerifier):
    """A verifier that grades reasoning-gym problems by their task's scorer.

    It grades other problems as `MathVerifier` does. An answer with the score 1 is correct; a lower score is
    recorded as a partial score. Source: arXiv 2505.24760.
    """

    modules: ClassVar[tuple[str, ...]] = ("reasoning_gym",)
    kind: Literal["reasoning_gym"] = "reasoning_gym"
    """Kind of grader."""
    problem: dict[str, JsonValue] | None = None
    """Problem to grade, set from the dataset; null for a problem that is not from reasoning-gym."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> ReasoningGymVerifier:
        """Return the verifier for the problem that the verifier values in `judged_by` identify.

        Returns this verifier if the values identify no reasoning-gym problem.
        """
        named = judged_by.get(FIELD)
        return self if named is None else self.model_copy(update={"problem": named})

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Decide cheap cases as `MathVerifier` does.

        Returns None for reasoning-gym problems, which workers score.
        """
        return equivalence.settle(gold, answer) if self.problem is None else None

    def compare(self, gold: str, answer: str) -> Finding:
        """Score answers to reasoning-gym problems, ignoring `gold`; compare others as `MathVerifier` does."""
        if self.problem is None:
            return equivalence.verify(gold, answer)
        dataset, entry = generated(json.dumps(self.problem, sort_keys=True))
        score = min(max(float(dataset.score_answer(answer, entry)), 0.0), 1.0)
        return Finding(score > 1 - 1e-6, f"scored {score:.3g} by {PACKAGE}", score)

    def restate(self, gold: str) -> str:
        """Return the reference answer in another notation, or unchanged for a reasoning-gym problem.

        A reasoning-gym scorer need not accept other notations, but must accept the reference answer itself.
        """
        return super().restate(gold) if self.problem is None else gold


def installed_version() -> str:
    """Return the installed version of reasoning-gym. Raises `DataError` if it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise DataError(f"{PACKAGE} {_INSTALL}") from error


@lru_cache(maxsize=256)
def generated(named: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the generator and the entry of the problem that the JSON text `named` identifies.

    The entry is the generator's mapping with the question, the reference answer and metadata. Raises
    `DataError` if the installed package generates a different question.
    """
    problem = json.loads(named)
    dataset, entry = _generate(problem)
    if problem.get("question_sha256") not in (None, _digest(entry["question"])):
        raise DataError(
            f"{PACKAGE} {installed_version()} generates a different problem for the recorded seed; "
            "install the version that generated the data"
        )
    return dataset, entry


def serve() -> None:
    """Generate problems for another process until standard input ends.

    Each input line is JSON that identifies a problem; the reply line is JSON with its question and reference
    answer, or with an error. The process has a fixed hash seed, since some generators depend on it.
    """
    for line in sys.stdin:
        try:
            _, entry = _generate(json.loads(line))
            answer = entry["answer"]
            if not isinstance(answer, str) or not answer.strip():
                raise DataError(
                    "the task has no reference answers, so its scorer cannot be checked; choose another task"
                )
            reply = {"question": entry["question"], "answer": answer, "sha256": _digest(entry["question"])}
        except DataError as error:
            reply = {"error": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _generate(problem: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return a generator for one problem, and the problem's entry."""
    task, options = problem["task"], dict(problem["options"])
    datasets, curricula = _registry()
    if task not in datasets:
        near = difflib.get_close_matches(task, datasets, n=1)
        listed = (
            f"did you mean {near[0]}?" if near else f"some are {', '.join(sorted(datasets)[:_MAX_LISTED])}"
        )
        raise DataError(f"dataset.task={task}: unknown task of {PACKAGE}; {listed}")
    make, config_class = datasets[task]
    known = {field.name for field in fields(config_class)} - {"seed", "size"}
    if unknown := options.keys() - known:
        raise DataError(
            f"dataset.options.{min(unknown)}: unknown setting of {task}; use one of "
            f"{', '.join(sorted(known))}"
        )
    base = {"seed": int(problem["seed"]), "size": 1}
    random.seed(base["seed"])  # some generators also draw from the global stream
    try:
        if problem["difficulty"] is None:
            config = config_class(**base, **options)
        else:
            config = replace(_at_difficulty(task, int(problem["difficulty"]), curricula, base), **options)
        dataset = make(config)
        return dataset, dataset[0]
    except DataError:
        raise
    except Exception as error:  # generators raise arbitrary errors for invalid settings
        raise DataError(
            f"dataset.task={task}: the generator rejects these settings ({reason_of(error)}); change "
            "dataset.options or dataset.difficulty"
        ) from error


def _at_difficulty(task: str, level: int, curricula: Mapping[str, Any], base: dict[str, int]) -> Any:  # noqa: ANN401 - untyped
    """Return the generator's settings at the given level of the task's curriculum; levels count from 0.

    `base` contains further settings: the seed and the number of problems. Raises `DataError` if the task has
    no levels, or if `level` is above the highest one.
    """
    if task not in curricula:
        raise DataError(
            f"dataset.difficulty={level} cannot be used with {task}, which has no levels; remove it and "
            "use dataset.options"
        )
    curriculum = curricula[task]()
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if level > highest:
        raise DataError(f"dataset.difficulty must be between 0 and {highest} for {task}, got {level}")
    curriculum.set_global_level(level)
    return curriculum.generate_configuration(base)


@lru_cache(maxsize=1)
def _registry() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return two mappings by task: the generators with their settings classes, and the curricula."""
    installed_version()
    importlib.import_module("reasoning_gym")
    factory = importlib.import_module("reasoning_gym.factory")
    return factory.DATASETS, factory.CURRICULA


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]
