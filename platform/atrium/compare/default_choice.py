"""The default experiment and the default baseline, which are the same in every page, command and report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.base.nested import flattened_text
from atrium.base.recorded import read_object
from atrium.compare.arm_names import NamedArm, name_arms
from atrium.compare.arms import Arm
from atrium.compare.run_settings import Settings
from atrium.runs.find import is_failed_start, list_runs, started
from atrium.runs.layout import SWEEPS_DIR
from atrium.runs.run_folder import RunFolder

ANNOTATIONS = "annotations.json"
"""The file in a run directory with the notes that people wrote about the run."""
_BASELINES = ("grpo", "reinforce")
"""Algorithms that are usual baselines, in order of preference."""


def default_experiment(experiments: Mapping[str, Mapping[str, Settings]]) -> str | None:
    """Return the latest experiment with at least two methods.

    If no experiment has two methods, the latest experiment is returned. Returns None if there are no
    experiments. `experiments` maps each experiment, latest first, to the settings of its training runs. It
    excludes sweeps, evaluations and archived runs.
    """
    several = (name for name, runs in experiments.items() if num_methods(name_arms(runs)) > 1)
    return next(several, next(iter(experiments), None))


def named_by_default(runs_dir: Path) -> str:
    """Return the experiment to compare by default; raise `ConfigError` if `runs_dir` has none."""
    chosen = default_experiment(trainings_by_experiment(runs_dir))
    if chosen is None:
        raise ConfigError(
            f"{runs_dir.absolute()} contains no experiment; give the names of the runs to compare"
        )
    return chosen


def is_archived(folder: RunFolder) -> bool:
    """Return whether the user archived the run."""
    return read_object(folder.path / ANNOTATIONS)[0].get("is_archived") is True


def trainings_by_experiment(runs_dir: Path) -> dict[str, dict[str, Settings]]:
    """Return the settings of training runs, keyed by experiment (latest first) and then by run name.

    Sweeps, evaluations, archived runs and failed starts are excluded.
    """
    found: dict[str, dict[str, Settings]] = {}
    for folder in reversed(list_runs(runs_dir)):
        experiment = folder.name.partition("/")[0]
        config, _ = read_object(folder.config_file)
        is_sweep = (runs_dir / SWEEPS_DIR / experiment).is_dir()
        is_hidden = is_sweep or is_archived(folder) or is_failed_start(folder)
        if config and config.get("kind") != "evaluation" and not is_hidden:
            found.setdefault(experiment, {})[folder.name] = flattened_text(config)
    return found


def num_methods(arms: Iterable[NamedArm]) -> int:
    """Return the number of arms, not counting "other runs".

    An arm counts as "other runs" if it has a single seed while other arms of its algorithm or label have
    several (see `arm_names`).
    """
    return sum(not arm.is_other for arm in arms)


def default_baseline(arms: Sequence[Arm]) -> Arm:
    """Return the earliest GRPO arm, or the earliest REINFORCE arm if there is none, or the earliest arm."""

    def place(arm: Arm) -> tuple[int, float, str]:
        algorithm = arm.settings.get("algorithm.name", "")
        rank = _BASELINES.index(algorithm) if algorithm in _BASELINES else len(_BASELINES)
        first = min(arm.runs.values(), key=lambda run: (started(run), run.name))
        return rank, started(first), first.name

    return min(arms, key=place)
