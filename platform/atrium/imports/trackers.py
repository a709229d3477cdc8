"""Readers of tracker curves: CSV exports of W&B charts and event files of TensorBoard.

A W&B export has a column `Step` and a column `<run> - <metric>` for each run. Trackers record runs, not
methods. The method is therefore the value of `--method`, or the value of the run's setting KEY with `--map
method=KEY`, or else the run's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atrium.base.errors import ConfigError, DataError, MissingDependencyError, install_command
from atrium.base.metric_names import known_words, mapped
from atrium.base.rows import Row
from atrium.imports.answers import Curve, Source, Stated, real_number, whole_number
from atrium.imports.files import read_errors, rows

_SIDES = ("__MIN", "__MAX")
"""Suffixes of W&B columns with the minimum and maximum over a group of runs."""
STEPS = ("train/global_step", "trainer/global_step", "training/global_step", "global_step", "_step")
"""W&B metrics that contain the training step, in order of preference; `_step` counts calls of `log`."""
_SETTINGS = {
    "model.source": ("model_name_or_path", "_name_or_path", "actor_rollout_ref.model.path", "model.source"),
    "optimizer.learning_rate": (
        "learning_rate",
        "actor_rollout_ref.actor.optim.lr",
        "optimizer.learning_rate",
    ),
}
"""Names of the same setting in TRL, verl and Atrium, by Atrium's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A tracker's run: its name (`method`), settings by dotted key (`config`) and metrics by step.

    `key` distinguishes the runs of one file; it is empty for a file with a single run.
    """

    method: str
    steps: Mapping[int, Mapping[str, object]]
    config: Mapping[str, object] = field(default_factory=dict)
    key: str = ""


def add_history(steps: dict[int, dict[str, object]], values: Mapping[str, object]) -> None:
    """Add one W&B log record to its step in `steps`.

    A record whose training step is missing, negative or not a whole number is left out. So are metrics whose
    names begin with `_`, which are W&B's own.
    """
    step = next((values[name] for name in STEPS if isinstance(values.get(name), int | float)), None)
    if isinstance(step, int | float) and step >= 0 and float(step).is_integer():
        own = {name: value for name, value in values.items() if not name.startswith("_")}
        steps.setdefault(int(step), {}).update(own)


def tracked_source(
    path: Path, name: str, runs: Sequence[TrackedRun], stated: Stated, differences: tuple[str, ...] = ()
) -> Source:
    """Return a source with the curves of `runs`; `name` describes the format.

    A run's method is `stated.method`, otherwise the value of the run's setting KEY with `--map method=KEY`,
    otherwise the run's name. Its seed is `stated.seed`, otherwise the value of its setting `seed`, or of the
    setting KEY with `--map seed=KEY`. Raises `ConfigError` if `--map` names a role other than `method` and
    `seed` or if a run lacks the mapped setting, and `DataError` if no run has metrics.
    """
    if wrong := [f"{role}={key}" for role, key in stated.columns.items() if role not in ("method", "seed")]:
        raise ConfigError(
            f"{path}: --map {wrong[0]} cannot be used, since a {name} has only curves; map only method "
            "and seed"
        )
    for run in runs:
        for role, key in stated.columns.items():
            if key not in run.config:
                known = ", ".join(list(run.config)[:12]) or "none"
                raise ConfigError(
                    f"{path}: --map {role}={key}: unknown setting; use a setting of {run.method}: {known}"
                )
    return curve_source(path, name, runs, stated, differences)


def curve_source(
    path: Path, name: str, runs: Sequence[TrackedRun], stated: Stated, differences: tuple[str, ...] = ()
) -> Source:
    """Return a source with the curves of `runs`, as `tracked_source` does, but without checking `--map`.

    Runs without metrics are left out. Raises `DataError` if no run has metrics.
    """
    curves = [_curve(path, run, stated) for run in runs]
    kept = tuple(curve for curve in curves if any(curve.steps.values()))
    if not kept:
        raise DataError(f"{path} contains no metrics by step; choose another file")
    methods = ", ".join(dict.fromkeys(curve.method for curve in kept))
    metrics = [one for run in runs for step in run.steps.values() for one in step if mapped({one: step[one]})]
    words = (f"method is {methods}", known_words([*dict.fromkeys(metrics)]))
    return Source(path=path, format=name, mapping=words, curves=kept, differences=differences)


def _curve(path: Path, run: TrackedRun, stated: Stated) -> Curve:
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
    """Return whether a file has the suffix and columns of an exported W&B chart."""
    names = list(row)
    return (
        path.suffix == ".csv"
        and names[:1] != []
        and names[0] in ("Step", *STEPS)
        and any(" - " in n for n in names)
    )


def read_wandb_csv(path: Path, first: Row, stated: Stated) -> Source:
    """Read the curves of all runs in an exported W&B chart; `first` is its first row."""
    axis, *names = first
    wanted = {name: name.rpartition(" - ") for name in names if " - " in name and not name.endswith(_SIDES)}
    steps: dict[str, dict[int, dict[str, object]]] = {}
    for place, row in rows(path):
        step = whole_number(row[axis], axis, place)
        for name, (run, _, metric) in wanted.items():
            if row[name] not in ("", None):
                steps.setdefault(run, {}).setdefault(step, {})[metric] = real_number(row[name], place)
    runs = [TrackedRun(method=run, steps=own, key=run) for run, own in steps.items()]
    return tracked_source(path, "W&B chart", runs, stated)


def is_tensorboard(path: Path) -> bool:
    """Return whether a file has the name of a TensorBoard event file."""
    return "tfevents" in path.name


def read_tensorboard(path: Path, stated: Stated) -> Source:
    """Read the scalars of an event file with TensorBoard's own reader."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} is an event file, which requires the extra `tensorboard`; run "
            f"{install_command('tensorboard')}"
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
