"""Tasks of the package reasoning-gym: their generators, and a verifier that calls their own scorers.

A problem is named by its task, its difficulty, the generator's other settings and a seed, from which a worker
process generates it again, so that the scorer gets the same objects that the generator made. The text of its
question is compared by a hash, since another version of the package may generate another problem.
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

from atrium.base.errors import DataError, install_command
from atrium.grading import equivalence
from atrium.grading.equivalence import Finding
from atrium.grading.verifiers import ExpressionVerifier

PACKAGE = "reasoning-gym"
FIELD = "reasoning_gym"
"""The name of the verifier value that names a problem."""
_INSTALL = f"it is not installed; {install_command('tasks')}"
_MAX_LISTED = 12


class ReasoningGymVerifier(ExpressionVerifier):
    """The scorer of the reasoning-gym task that a problem comes from; other problems are graded as by `math`.

    A score of 1 is a correct answer, and a lower one a partial score. Source: arXiv 2505.24760.
    """

    modules: ClassVar[tuple[str, ...]] = ("reasoning_gym",)
    kind: Literal["reasoning_gym"] = "reasoning_gym"
    """Which kind of grader this is."""
    problem: dict[str, JsonValue] | None = None
    """The problem that is judged, which the data set; null for none of this package."""

    def of_problem(self, judged_by: Mapping[str, Any]) -> ReasoningGymVerifier:
        """With the problem that the data name."""
        named = judged_by.get(FIELD)
        return self if named is None else self.model_copy(update={"problem": named})

    def settle(self, gold: str, answer: str) -> Finding | None:
        """Only worker processes call a scorer."""
        return equivalence.settle(gold, answer) if self.problem is None else None

    def compare(self, gold: str, answer: str) -> Finding:
        """By the task's scorer, whatever the reference."""
        if self.problem is None:
            return equivalence.verify(gold, answer)
        dataset, entry = generated(json.dumps(self.problem, sort_keys=True))
        score = min(max(float(dataset.score_answer(answer, entry)), 0.0), 1.0)
        return Finding(score > 1 - 1e-6, f"scored {score:.3g} by {PACKAGE}", score)

    def restate(self, gold: str) -> str:
        """The reference as it is, which its own scorer has to accept."""
        return super().restate(gold) if self.problem is None else gold


def installed_version() -> str:
    """The version of the package. Raises `DataError` where it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise DataError(f"{PACKAGE}: {_INSTALL}") from error


@lru_cache(maxsize=256)
def generated(named: str) -> tuple[Any, Mapping[str, Any]]:
    """The generator and the entry of a problem that JSON names. Raises `DataError` for another question."""
    problem = json.loads(named)
    dataset, entry = _generate(problem)
    if problem.get("question_sha256") not in (None, _digest(entry["question"])):
        raise DataError(f"{PACKAGE} {installed_version()} generates another problem from the same seed")
    return dataset, entry


def serve() -> None:
    """Answer JSON lines that name problems with their question and reference, until the input ends.

    Run in a process of its own with a fixed hash seed, on which the order of some generators depends.
    """
    for line in sys.stdin:
        try:
            _, entry = _generate(json.loads(line))
            answer = entry["answer"]
            if not isinstance(answer, str) or not answer.strip():
                raise DataError("the task has no reference answers, so its scorer cannot be checked")
            reply = {"question": entry["question"], "answer": answer, "sha256": _digest(entry["question"])}
        except DataError as error:
            reply = {"error": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _generate(problem: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """A generator of one problem, and its entry."""
    task, options = problem["task"], dict(problem["options"])
    datasets, curricula = _registry()
    if task not in datasets:
        near = difflib.get_close_matches(task, datasets, n=1)
        listed = (
            f"did you mean {near[0]}?" if near else f"some are {', '.join(sorted(datasets)[:_MAX_LISTED])}"
        )
        raise DataError(f"dataset.task={task}: {PACKAGE} has no such task; {listed}")
    make, config_class = datasets[task]
    known = {field.name for field in fields(config_class)} - {"seed", "size"}
    if unknown := options.keys() - known:
        raise DataError(
            f"dataset.options.{min(unknown)}: {task} has no such setting; it has {', '.join(sorted(known))}"
        )
    base = {"seed": int(problem["seed"]), "size": 1}
    random.seed(base["seed"])  # some generators draw from the global stream, too
    try:
        if problem["difficulty"] is None:
            config = config_class(**base, **options)
        else:
            config = replace(_at_difficulty(task, int(problem["difficulty"]), curricula, base), **options)
        dataset = make(config)
        return dataset, dataset[0]
    except DataError:
        raise
    except Exception as error:  # generators raise anything for settings that do not fit
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"dataset.task={task}: the generator refuses these settings ({said})") from error


def _at_difficulty(task: str, level: int, curricula: Mapping[str, Any], base: dict[str, int]) -> Any:  # noqa: ANN401 - untyped
    """The generator's settings at a level of its curriculum, counted from 0."""
    if task not in curricula:
        raise DataError(f"dataset.difficulty={level}: {task} has no levels; use dataset.options")
    curriculum = curricula[task]()
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if level > highest:
        raise DataError(f"dataset.difficulty={level}: {task} has the levels 0 to {highest}")
    curriculum.set_global_level(level)
    return curriculum.generate_configuration(base)


@lru_cache(maxsize=1)
def _registry() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The generators and their settings by task, and the curricula."""
    installed_version()
    importlib.import_module("reasoning_gym")
    factory = importlib.import_module("reasoning_gym.factory")
    return factory.DATASETS, factory.CURRICULA


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]
