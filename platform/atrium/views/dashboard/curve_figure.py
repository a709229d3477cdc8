"""Figures of the curves that the dashboard's queries return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from atrium.base.errors import ConfigError
from atrium.document.document import Axis, Lines, Series, Unit
from atrium.views.dashboard.curve_queries import MOST_BANDS

_X_LABELS = {"step": "training step", "tokens": "generated tokens", "wall_clock": "training time (s)"}
_BANDS = {"range": "minimum to maximum over runs", "deviation": "one standard deviation over runs"}
_FEW = 12
"""Curves with fewer points than this have markers."""


def curves_figure(
    panels: Sequence[Mapping[str, Any]],
    *,
    axis: str,
    band: str,
    is_log: bool = False,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    key: str = "curves",
) -> Lines:
    """Return one figure with all curves in `panels`.

    `panels` are the panels in an answer of `curve_queries.curves_answer`, and `axis` and `band` are those of
    the request for this answer. If there are several panels, `labels` maps the key of each quantity to its
    displayed name (default: the key). Raises `ConfigError` if there is no curve.
    """
    shown = [(panel, one) for panel in panels for one in panel["series"]]
    if not shown:
        raise ConfigError(
            "curves cannot be drawn, since none of these runs recorded the chosen metric; choose another one"
        )
    first, known = panels[0], labels or {}
    unit = "%" if first["is_share"] else first["unit"]
    is_single = len(panels) == 1
    has_band = any(one.get("low") for _, one in shown) and not is_log and len(shown) <= MOST_BANDS
    meaning = first["meaning"] if is_single else "share" if first["is_share"] else "value"
    value_unit: Unit = "share" if first["is_share"] else ""
    series: list[Series] = []
    for number, (panel, one) in zip(count(), shown):
        name = _label(one, "" if is_single else known.get(panel["name"], panel["name"]), panels)
        own = _series(one, name, one["place"] if is_single else number, has_band=has_band)
        series += own if axis in _X_LABELS else [replace(own[-1], is_line=False)]
    return Lines(
        key=key,
        title=title or " and ".join(panel["name"].removeprefix("evaluation/") for panel in panels),
        caption=f"(band: {_BANDS[band]})" if has_band and band in _BANDS else "",
        x=Axis(title=_X_LABELS.get(axis, axis), unit="count" if axis == "step" else ""),
        y=Axis(
            title=f"{meaning} ({unit})" if unit else meaning,
            unit=value_unit,
            scale="log" if is_log else "linear",
        ),
        series=tuple(series),
    )


def _series(one: Mapping[str, Any], name: str, place: int, *, has_band: bool) -> list[Series]:
    """Return the series that draw one curve with its band. `place` determines the color.

    The curve is dotted where some runs of its group have already ended.
    """
    x, y = tuple(one["x"]), tuple(one["y"])
    num = one.get("num", 1)
    nums = num if isinstance(num, list) else [num] * len(x)
    has_ended = [few < max(nums) for few in nums]
    bands = (tuple(one["low"]), tuple(one["high"])) if has_band and one.get("low") else ((), ())
    rest = tuple(value if ended else None for value, ended in zip(y, has_ended, strict=True))
    main = tuple(None if ended else value for value, ended in zip(y, has_ended, strict=True))
    few = [Series(name="", x=x, y=rest, place=place, dash="dotted")] if any(has_ended) else []
    return [
        *few,
        Series(name=name, x=x, y=main, low=bands[0], high=bands[1], place=place, has_points=len(x) < _FEW),
    ]


def _label(one: Mapping[str, Any], quantity: str, panels: Sequence[Mapping[str, Any]]) -> str:
    """Return a curve's label: its group with the number of runs, its quantity, or both."""
    num = one["num"] if isinstance(one["num"], int) else max(one["num"])
    label = f"{one['label']} (n = {num})" if num > 1 else str(one["label"])
    if not quantity:
        return label
    return quantity if all(len(panel["series"]) < 2 for panel in panels) else f"{quantity}, {label}"
