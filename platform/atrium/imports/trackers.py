"""Curves from trackers: CSV exports of W&B charts, and event files of TensorBoard.

A W&B export has a column `Step` and a column `<run> - <metric>` for each run. Both name runs; without
`--method` the run's name is the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from atrium.base.errors import DataError, MissingDependencyError, install_command
from atrium.base.metric_names import known_words, mapped
from atrium.imports.answers import Curve, Source, Stated, whole_number
from atrium.imports.files import Row, read_errors, rows

_SIDES = ("__MIN", "__MAX")
"""Endings of W&B's columns for the spread over a group of runs."""
_STEPS = ("Step", "train/global_step", "trainer/global_step", "global_step")


def is_wandb_csv(path: Path, row: Row) -> bool:
    """Whether W&B exported a chart."""
    names = list(row)
    return path.suffix == ".csv" and names[:1] != [] and names[0] in _STEPS and any(" - " in n for n in names)


def read_wandb_csv(path: Path, stated: Stated) -> Source:
    """The curves of each run of an exported chart."""
    found = rows(path)
    first = next(found)
    axis, *names = first[1]
    wanted = {name: name.rpartition(" - ") for name in names if " - " in name and not name.endswith(_SIDES)}
    steps: dict[str, dict[int, dict[str, float]]] = {}
    for place, row in chain([first], found):
        step = whole_number(row[axis], axis, place)
        for name, (run, _, metric) in wanted.items():
            if row[name] not in ("", None):
                value = _number(row[name], place)
                steps.setdefault(run, {}).setdefault(step, {}).update(mapped({metric: value}))
    curves = [Curve(method=stated.method or run, steps=own, seed=stated.seed) for run, own in steps.items()]
    if len(curves) > 1 and stated.method:
        raise DataError(f"{path}: holds {len(curves)} runs, and --method names one; export one run")
    metrics = [metric for _, _, metric in wanted.values()]
    return _source(path, "W&B chart", curves, metrics)


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
    steps: dict[int, dict[str, float]] = {}
    names: dict[str, None] = {}
    with read_errors(path):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value if event.HasField("summary") else ():
                number = tensor_util.make_ndarray(value.tensor) if value.HasField("tensor") else None
                if number is not None and number.size == 1 and number.dtype.kind in "fiu":
                    names[value.tag] = None
                    steps.setdefault(event.step, {}).update(mapped({value.tag: float(number.item())}))
    method = stated.method or path.absolute().parent.name
    return _source(
        path, "TensorBoard events", [Curve(method=method, steps=steps, seed=stated.seed)], [*names]
    )


def _number(value: object, place: str) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise DataError(f"{place}: expected a number, got {str(value)[:40]!r}") from None


def _source(path: Path, name: str, curves: list[Curve], metrics: list[str]) -> Source:
    kept = tuple(curve for curve in curves if _holds(curve.steps))
    if not kept:
        raise DataError(f"{path}: holds no metrics of steps, or is damaged")
    methods = ", ".join(dict.fromkeys(curve.method for curve in kept))
    return Source(path=path, format=name, mapping=(f"method is {methods}", known_words(metrics)), curves=kept)


def _holds(steps: Mapping[int, Mapping[str, float]]) -> bool:
    return any(steps.values())
