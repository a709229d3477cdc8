"""Tables of a run's health: quantities over time with the limits of `diagnosis`, and the machine's state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import (
    CLIP_HIGH_FRAC,
    CLIP_LOW_FRAC,
    ENTROPY,
    GRAD_NORM,
    HEAVIEST_TOKEN_FRAC,
    KL_AFTER_UPDATE,
    LENGTH_MEAN,
    MISMATCH_KL,
    NO_SIGNAL_FRAC,
    REWARD,
    SYSTEM,
    TRUNCATED_FRAC,
    Quantity,
    gpu_quantities,
    part_means,
    part_quantities,
)
from atrium.base.recorded import number_or_nan
from atrium.document.document import Cell, Column, Row, Table, Trend, Unit, Value
from atrium.document.formatting import value_text
from atrium.runs.diagnosis import (
    ALMOST_ALL,
    MAX_HEAVIEST_TOKEN,
    MAX_KL,
    MAX_LENGTH_GROWTH,
    MAX_MISMATCH_KL,
    MAX_TRUNCATED,
    MIN_COMPLETION_ENTROPY,
    NUM_FIRST_STEPS,
)
from atrium.runs.layout import RunLayout

Columns = Mapping[str, NDArray[np.float64]]

_GPU = "system/gpu"
_NUM_POINTS = 80

_HEALTH = (
    REWARD,
    NO_SIGNAL_FRAC,
    ENTROPY,
    LENGTH_MEAN,
    TRUNCATED_FRAC,
    KL_AFTER_UPDATE,
    HEAVIEST_TOKEN_FRAC,
    CLIP_HIGH_FRAC,
    CLIP_LOW_FRAC,
    MISMATCH_KL,
    GRAD_NORM,
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold of a rule in `diagnosis`.

    The rule reports a problem only above `value`, or only below it if `is_floor` is set. It may have further
    conditions, such as a significant fall of the reward.
    """

    value: float
    is_floor: bool = False

    def text(self, unit: Unit) -> str:
        """Return the range in which the rule can report a problem, such as `above 30.0`."""
        return f"{'below' if self.is_floor else 'above'} {value_text(self.value, unit)}"


def health_tables(run: RunLayout, columns: Columns) -> tuple[Table, ...]:
    """Return tables of a run's health and of its machine, without tables that have no rows.

    `columns` contains the run's metrics [N] by name.
    """
    limits = limits_of(columns)
    health = course_table(columns, _HEALTH, limits, title="Health", num_points=_NUM_POINTS)
    return with_rows(health, machine_table(run))


def with_rows(*tables: Table) -> tuple[Table, ...]:
    """Return those of `tables` that have rows."""
    return tuple(table for table in tables if table.rows)


def machine_table(run: RunLayout) -> Table:
    """Return a table of the machine's state during all sessions of a run.

    The table has no rows if this state was not recorded or cannot be read.
    """
    try:
        records = read_json_lines(run.system_file).records
    except OSError:
        records = ()
    gpus = {name.removeprefix(_GPU).partition("_")[0] for one in records for name in one if _GPU in name}
    quantities = (*SYSTEM, *(one for gpu in sorted(gpus) for one in gpu_quantities(gpu)))
    columns = {}
    for one in quantities:
        values = np.array([number_or_nan(record.get(one.name)) for record in records])
        columns[one.name] = values[np.isfinite(values)]
    return course_table(columns, quantities, title="Machine", num_points=_NUM_POINTS)


def course_table(
    columns: Columns,
    quantities: Iterable[Quantity],
    limits: Mapping[str, Limit] | None = None,
    *,
    title: str = "",
    num_points: int | None = None,
) -> Table:
    """Return a table with the first value, the curve and the last value of each recorded quantity.

    A curve consists of at most `num_points` means over equal parts of the steps. If there are several named
    rewards, the row of the total reward is followed by rows with each reward's mean and share of the
    variance. With `limits`, an additional column contains the range in which a rule of `diagnosis` can report
    a problem. The table has no rows if there are no steps.
    """
    rows = []
    of_parts = {REWARD: [one for name in part_means(columns) for one in part_quantities(name)]}
    for quantity in (one for chosen in quantities for one in (chosen, *of_parts.get(chosen, ()))):
        values = columns.get(quantity.name)
        if values is None or not len(values):
            continue
        unit: Unit = "share" if quantity.name.endswith("_frac") else ""
        first, last = (Value(float(values[place]), unit) for place in (0, -1))
        limit = (limits or {}).get(quantity.name)
        course = Trend(_means(values, num_points), None if limit is None else limit.value)
        cells: tuple[Cell, ...] = (_label(quantity, unit), first, course, last)
        rows.append(Row(cells if limits is None else (*cells, None if limit is None else limit.text(unit))))
    shown = (Column("curve"), Column("first"), Column("course", is_text=True), Column("last"))
    alarm = [Column("alarm", is_text=True)] if limits is not None else []
    return Table(title=title, key=title.lower(), columns=(*shown, *alarm), rows=tuple(rows))


def limits_of(columns: Columns) -> dict[str, Limit]:
    """Return the limits by quantity name; some depend on the first or last steps of `columns` [N]."""
    start = {
        one.name: float(np.nanmean(values[:NUM_FIRST_STEPS]))
        for one in (REWARD, LENGTH_MEAN)
        if np.isfinite((values := columns.get(one.name, np.zeros(0)))[:NUM_FIRST_STEPS]).any()
    }
    found = {
        NO_SIGNAL_FRAC: Limit(ALMOST_ALL),
        TRUNCATED_FRAC: Limit(MAX_TRUNCATED),
        KL_AFTER_UPDATE: Limit(MAX_KL),
        HEAVIEST_TOKEN_FRAC: Limit(MAX_HEAVIEST_TOKEN),
        MISMATCH_KL: Limit(MAX_MISMATCH_KL),
    }
    if REWARD.name in start:
        found[REWARD] = Limit(start[REWARD.name], is_floor=True)
    if LENGTH_MEAN.name in start:
        found[LENGTH_MEAN] = Limit(MAX_LENGTH_GROWTH * start[LENGTH_MEAN.name])
        length = columns[LENGTH_MEAN.name]
        if length[-1] > 0:
            found[ENTROPY] = Limit(MIN_COMPLETION_ENTROPY / float(length[-1]), is_floor=True)
    return {quantity.name: limit for quantity, limit in found.items()}


def _label(quantity: Quantity, unit: Unit) -> str:
    """Return a label such as `grad norm` or `truncated, %`: a quantity's name in words, and its unit."""
    shown = "%" if unit == "share" else quantity.unit
    name = re.sub(r"_(frac|s|mb|w|celsius)$", "", quantity.name.partition("/")[2])
    return re.sub("[/_]", " ", name) + (f", {shown}" if shown else "")


def _means(values: NDArray[np.float64], num_points: int | None) -> tuple[float, ...]:
    """Shorten a curve to at most `num_points` values, which are means over parts of nearly equal length.

    A part that contains NaN has the mean NaN.
    """
    if num_points is None or len(values) <= num_points:
        return tuple(values.tolist())
    return tuple(float(np.mean(part)) for part in np.array_split(values, num_points))
