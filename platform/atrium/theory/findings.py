"""The experiments of `atrium theory`, run on given methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.theory.bias import estimator_biases, faithfulness
from atrium.theory.gradients import coefficient_curves, equivalence
from atrium.theory.implicit_reward import regression_findings
from atrium.theory.preferences import preference_optima
from atrium.theory.results import (
    CoefficientCurves,
    Equivalence,
    EstimatorBias,
    Faithfulness,
    MethodWindow,
    PreferenceOptima,
    RegressionFindings,
    UpdateCourse,
)
from atrium.theory.updates import BIN_EDGES, Rewards, update_course

_RATIOS = tuple(0.3 + 0.005 * step for step in range(441))
_KINDS: Mapping[str, Rewards] = {"random rewards": "random", "true rewards": "true"}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Results of `atrium theory`. The fields of parts that were not selected are empty."""

    windows: tuple[MethodWindow, ...] = ()
    curves: tuple[CoefficientCurves, ...] = ()
    equivalences: tuple[Equivalence, ...] = ()
    courses: Mapping[str, tuple[UpdateCourse, ...]] = field(default_factory=dict)
    bin_edges: tuple[float, ...] = BIN_EDGES
    biases: tuple[EstimatorBias, ...] = ()
    faithfulness: tuple[Faithfulness, ...] = ()
    regression: RegressionFindings | None = None
    preferences: PreferenceOptima | None = None


def find(methods: Sequence[Method], parts: Sequence[str], *, num_seeds: int) -> Findings:
    """Run the selected `parts` of `atrium theory` on the methods, on one thread."""
    # The tensors hold a few hundred numbers, too few for several threads.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Findings(**dict(_found(methods, parts, num_seeds)))
    finally:
        torch.set_num_threads(num_threads)


def _found(methods: Sequence[Method], parts: Sequence[str], num_seeds: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each field of `Findings` that belongs to the selected parts."""
    objectives = list(map(Objective, methods))
    if "gradients" in parts:
        yield "curves", tuple(coefficient_curves(one, _RATIOS) for one in objectives)
        yield "equivalences", tuple(map(equivalence, objectives))
    if "windows" in parts:
        yield "windows", tuple(map(MethodWindow.of, methods))
    if "updates" in parts:
        courses = {
            title: tuple(update_course(one, rewards, num_seeds=num_seeds) for one in objectives)
            for title, rewards in _KINDS.items()
        }
        yield "courses", courses
    if "bias" in parts:
        yield "biases", tuple(estimator_biases())
        yield "faithfulness", tuple(map(faithfulness, objectives))
    if "gvpo" in parts:
        yield "regression", regression_findings()
        yield "preferences", preference_optima()
