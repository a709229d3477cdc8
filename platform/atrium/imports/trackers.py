"""Curves from trackers: CSV exports of W&B charts, and event files of TensorBoard.

A W&B export has a column `Step` and a column `<run> - <metric>` for each run. Trackers name runs, not
methods: without `--method` or `--map method=KEY`, a setting of the run, the run's name is the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from atrium.base.errors import ConfigError, DataError, MissingDependencyError, install_command
from atrium.base.metric_names import known_words, mapped
from atrium.base.rows import Row
from atrium.imports.answers import Curve, Source, Stated, real_number, whole_number
from atrium.imports.files import read_errors, rows

_SIDES = ("__MIN", "__MAX")
"""Endings of W&B's columns for the spread over a group of runs."""
STEPS = ("train/global_step", "trainer/global_step", "training/global_step", "global_step", "_step")
"""Metrics of W&B that hold the training step, the preferred ones first; `_step` counts what was logged."""
_SETTINGS = {
    "model.source": ("model_name_or_path", "_name_or_path", "actor_rollout_ref.model.path", "model.source"),
    "optimizer.learning_rate": (
        "learning_rate",
        "actor_rollout_ref.actor.optim.lr",
        "optimizer.learning_rate",
    ),
}
"""Settings of TRL, verl and Atrium by Atrium's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run of a tracker: its name, the dotted keys of its settings, and what it logged by step.

    `key` tells runs of one file apart, and is empty where a file holds one run.
    """

    method: str
    steps: Mapping[int, Mapping[str, object]]
    config: Mapping[str, object] = field(default_factory=dict)
    key: str = ""


def add_history(steps: dict[int, dict[str, object]], values: Mapping[str, object]) -> None:
    """Add what W&B logged at once to its step; names that begin with `_` are W&B's own."""
    step = next((values[name] for name in STEPS if isinstance(values.get(name), int | float)), None)
    if isinstance(step, int | float) and step >= 0 and float(step).is_integer():
        own = {name: value for name, value in values.items() if not name.startswith("_")}
        steps.setdefault(int(step), {}).update(own)


def tracked_source(
    path: Path, name: str, runs: Sequence[TrackedRun], stated: Stated, differences: tuple[str, ...] = ()
) -> Source:
    """The curves of runs, each with the method and seed that are stated, recorded or its name.

    Raises `ConfigError` for a setting of `--map` that is missing in a run, `DataError` if no run has metrics.
    """
    if wrong := [f"{role}={key}" for role, key in stated.columns.items() if role not in ("method", "seed")]:
        raise ConfigError(f"{path}: --map {wrong[0]}: a {name} has curves; --map takes its method and seed")
    curves = [_curve(path, run, stated) for run in runs]
    kept = tuple(curve for curve in curves if any(curve.steps.values()))
    if not kept:
        raise DataError(f"{path}: holds no metrics of steps")
    methods = ", ".join(dict.fromkeys(curve.method for curve in kept))
    metrics = [one for run in runs for step in run.steps.values() for one in step if mapped({one: step[one]})]
    words = (f"method is {methods}", known_words([*dict.fromkeys(metrics)]))
    return Source(path=path, format=name, mapping=words, curves=kept, differences=differences)


def _curve(path: Path, run: TrackedRun, stated: Stated) -> Curve:
    for role, key in stated.columns.items():
        if key not in run.config:
            known = ", ".join(list(run.config)[:12]) or "none"
            raise ConfigError(f"{path}: --map {role}={key}: the settings of {run.method} are {known}")
    seed = run.config.get(stated.columns.get("seed", "seed"))
    settings = {
        ours: next(str(run.config[one]) for one in theirs if run.config.get(one))
        for ours, theirs in _SETTINGS.items()
        if any(run.config.get(one) for one in theirs)
    }
    return Curve(
        method=stated.method or str(run.config.get(stated.columns.get("method", ""), "") or run.method),
        steps={step: mapped(values) for step, values in run.steps.items()},
        seed=stated.seed
        if stated.seed is not None or seed is None
        else whole_number(seed, "seed", str(path)),
        settings=settings,
        key=run.key,
    )


def is_wandb_csv(path: Path, row: Row) -> bool:
    """Whether W&B exported a chart."""
    names = list(row)
    return (
        path.suffix == ".csv"
        and names[:1] != []
        and names[0] in ("Step", *STEPS)
        and any(" - " in n for n in names)
    )


def read_wandb_csv(path: Path, stated: Stated) -> Source:
    """The curves of each run of an exported chart."""
    found = rows(path)
    first = next(found)
    axis, *names = first[1]
    wanted = {name: name.rpartition(" - ") for name in names if " - " in name and not name.endswith(_SIDES)}
    steps: dict[str, dict[int, dict[str, object]]] = {}
    for place, row in chain([first], found):
        step = whole_number(row[axis], axis, place)
        for name, (run, _, metric) in wanted.items():
            if row[name] not in ("", None):
                steps.setdefault(run, {}).setdefault(step, {})[metric] = real_number(row[name], place)
    runs = [TrackedRun(method=run, steps=own, key=run) for run, own in steps.items()]
    return tracked_source(path, "W&B chart", runs, stated)


def is_tensorboard(path: Path) -> bool:
    """Whether TensorBoard's writer named the file."""
    return "tfevents" in path.name


def read_tensorboard(path: Path, stated: Stated) -> Source:
    """The scalars of an event file, by TensorBoard's own reader."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: reading event files needs the extra `tensorboard`: {install_command('tensorboard')}"
        ) from error
    steps: dict[int, dict[str, object]] = {}
    with read_errors(path):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value if event.HasField("summary") else ():
                number = tensor_util.make_ndarray(value.tensor) if value.HasField("tensor") else None
                if number is not None and number.size == 1 and number.dtype.kind in "fiu":
                    steps.setdefault(event.step, {})[value.tag] = float(number.item())
    run = TrackedRun(method=path.absolute().parent.name, steps=steps)
    return tracked_source(path, "TensorBoard events", [run], stated)
