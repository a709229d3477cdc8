"""All experiments of this package on named methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from atrium.method.divergences import AlphaDivergence, BudgetDivergence
from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.theory.bias import estimator_biases, faithfulness
from atrium.theory.gradients import NamedObjective, coefficient_curves, equivalence
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
from atrium.theory.updates import BIN_EDGES, Rewards, UpdateSetting, update_course

_RATIOS = tuple(0.3 + 0.005 * step for step in range(441))
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")
_KINDS: Mapping[str, Rewards] = {"random rewards": "random", "true rewards": "true"}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings that were asked for; the rest is empty."""

    windows: tuple[MethodWindow, ...] = ()
    curves: tuple[CoefficientCurves, ...] = ()
    equivalences: tuple[Equivalence, ...] = ()
    courses: Mapping[str, tuple[UpdateCourse, ...]] = field(default_factory=dict)
    bin_edges: tuple[float, ...] = BIN_EDGES
    biases: tuple[EstimatorBias, ...] = ()
    faithfulness: tuple[Faithfulness, ...] = ()
    regression: RegressionFindings | None = None
    preferences: PreferenceOptima | None = None


def find(named: Mapping[str, Method], parts: Sequence[str], *, num_seeds: int) -> Findings:
    """Run the parts that were asked for on methods by name, with a bar on standard error."""
    methods = [named_objective(name, method) for name, method in named.items()]
    per_method = {"gradients": 2, "updates": len(_KINDS), "bias": 1}
    num_units = sum(per_method.get(part, 0) * len(methods) for part in parts)
    with _progress(num_units + ("bias" in parts) + ("gvpo" in parts)) as advance:
        found: dict[str, object] = {}
        if "gradients" in parts:
            found["curves"] = advance(
                "gradients", methods, lambda method: coefficient_curves(method, _RATIOS)
            )
            found["equivalences"] = advance("Theorems 4.1 and 4.2", methods, equivalence)
        if "windows" in parts:
            found["windows"] = tuple(MethodWindow.of(name, one.divergence) for name, one in named.items())
        if "updates" in parts:
            found["courses"] = {
                title: advance(f"updates, {title}", methods, _course(rewards, num_seeds))
                for title, rewards in _KINDS.items()
            }
        if "bias" in parts:
            (found["biases"],) = advance("KL estimators", [None], lambda _: tuple(estimator_biases()))
            found["faithfulness"] = advance("true gradients", methods, faithfulness)
        if "gvpo" in parts:
            (found["regression"],) = advance("GVPO", [None], lambda _: regression_findings())
            found["preferences"] = preference_optima()
    return Findings(**found)  # type: ignore[arg-type]


def named_objective(name: str, method: Method) -> NamedObjective:
    """The objective of a method, and D(w) <= delta where its divergence is a function of the ratio."""
    divergence = method.divergence
    is_feasible = None
    if isinstance(divergence, BudgetDivergence | AlphaDivergence):
        function, delta = divergence.of_ratio, divergence.delta

        def is_feasible(ratio: float) -> bool:
            return function.value(ratio) <= delta

    return NamedObjective(name=name, objective=Objective(method), is_feasible=is_feasible)


def _course(rewards: Rewards, num_seeds: int) -> Callable[[NamedObjective], UpdateCourse]:
    setting = UpdateSetting(rewards=rewards, num_seeds=num_seeds)
    return lambda method: update_course(method, setting)


class _Advance:
    """Applies a function to items, one unit of the bar each."""

    def __init__(self, progress: Progress, num_units: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=num_units)

    def __call__(
        self, title: str, items: Sequence[_Item], function: Callable[[_Item], _Found]
    ) -> tuple[_Found, ...]:
        found = []
        for item in items:
            self._progress.update(self._task, description=title)
            found.append(function(item))
            self._progress.advance(self._task)
        return tuple(found)


@contextmanager
def _progress(num_units: int) -> Iterator[_Advance]:
    # The tensors hold a few hundred numbers, over which threads only wait for one another.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            yield _Advance(progress, num_units)
    finally:
        torch.set_num_threads(num_threads)
