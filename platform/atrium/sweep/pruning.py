"""Early stopping: by validation curve, by comparison with the best trial, or after a collapse.

A stopping rule saves compute and supports no claim. The Wilcoxon test treats problems as independent within a
seed, and seeds as fixed. That would be wrong for a verdict. Verdicts therefore do not use this test: they use
fresh seeds, and intervals for new seeds and new problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

from atrium.base.errors import Pruned
from atrium.base.records import BenchmarkResult
from atrium.runs.diagnosis import Course, find_collapse
from atrium.runs.listener import Listener
from atrium.sweep.definition import PrunerConfig

_MIN_PAIRS = 10
VALIDATION_SUFFIX = "-validation"


def curve_pruner(config: PrunerConfig, num_steps: int) -> BasePruner:
    """Return the Optuna pruner that compares validation curves. Its resource is the training step."""
    match config.curve:
        case "successive_halving":
            return SuccessiveHalvingPruner(
                min_resource=config.min_steps, reduction_factor=config.reduction_factor
            )
        case "hyperband":
            return HyperbandPruner(
                min_resource=config.min_steps,
                max_resource=num_steps,
                reduction_factor=config.reduction_factor,
            )
        case "median":
            return MedianPruner(n_startup_trials=3, n_warmup_steps=config.min_steps)
    return NopPruner()


def is_worse(candidate: Sequence[float], best: Sequence[float], *, p_value: float, maximize: bool) -> bool:
    """Return whether a one-sided signed-rank test over problems finds a trial worse than the best trial.

    `candidate` and `best` are the two trials' scores by problem, and `p_value` is the significance level. The
    result is False if the candidate's mean is at least as good as that of the best trial, or if there are
    fewer than ten problems.
    """
    pairs = [(mine, other) for mine, other in zip(candidate, best, strict=False)]
    sign = 1.0 if maximize else -1.0
    differences = [sign * (mine - other) for mine, other in pairs]
    if len(differences) < _MIN_PAIRS or sum(differences) >= 0.0:
        return False
    from scipy.stats import wilcoxon  # 0.4 s

    found = wilcoxon(differences, alternative="less", zero_method="zsplit")
    return bool(found.pvalue < p_value)


@dataclass(eq=False)
class RunWatch(Listener):
    """A listener that watches one run and raises `Pruned` after a step to stop the run.

    `on_step` receives each step and may raise an exception. `report` receives each validation result and
    returns whether to stop the run.
    """

    config: PrunerConfig
    _: KW_ONLY
    on_step: Callable[[int], None]
    report: Callable[[int, Mapping[str, object]], bool] | None = None
    _evaluated: tuple[int, Mapping[str, object]] | None = None
    name: ClassVar[str] = "the sweep"
    may_stop: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._course = Course(num_newest=self.config.collapse_steps or 0)

    def evaluation(self, result: BenchmarkResult) -> None:
        """Store a validation result for the next call of `step`.

        Results before training and those of other benchmarks are ignored.
        """
        if result.benchmark.endswith(VALIDATION_SUFFIX) and result.step > 0:
            self._evaluated = (result.step, result.results)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raise `Pruned` if the run has collapsed, or if `report` returns true for a validation result."""
        self.on_step(step)
        self._check_collapse(step, metrics)
        evaluated, self._evaluated = self._evaluated, None
        if evaluated is not None and self.report is not None and self.report(*evaluated):
            raise Pruned(f"the validation curve is among the worst at step {step}")

    def _check_collapse(self, step: int, metrics: Mapping[str, float]) -> None:
        limit = self.config.collapse_steps
        if limit is None:
            return
        self._course.add(step, metrics)
        if found := find_collapse(self._course.steps, limit):
            raise Pruned(f"the run collapsed: {found.text.partition(';')[0]}")


def trial_report(trial: optuna.trial.Trial, metric: str) -> Callable[[int, Mapping[str, object]], bool]:
    """Return a function that reports a validation result to Optuna and returns whether to prune the trial.

    It reports the result's `metric`. Steps that were reported before a run was resumed are not reported
    again.
    """

    def report(step: int, results: Mapping[str, object]) -> bool:
        value = results.get(metric)
        if not isinstance(value, float | int):
            return False
        if step not in trial.storage.get_trial(trial._trial_id).intermediate_values:
            trial.report(float(value), step)
        return bool(trial.should_prune())

    return report
