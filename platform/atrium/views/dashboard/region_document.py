"""The ratios of a run, or of methods side by side, against their windows, as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atrium.compare.trust_region import SIGNS, RatioCounts, binned
from atrium.document.document import (
    Axis,
    Column,
    Document,
    Figure,
    Lines,
    Mark,
    Row,
    Section,
    Sentence,
    Series,
    Table,
    Unit,
    Value,
)
from atrium.document.formatting import counted, value_text
from atrium.method.windows import Window
from atrium.views.dashboard.curve_figure import curves_figure

Panel = Mapping[str, Any]
Edges = NDArray[np.float64]

_SIGN_NAMES = dict(zip(SIGNS, ("A > 0", "A < 0", "A = 0"), strict=True))
_STEPS = Axis(title="training step", unit="count")
CUTS = {
    "objective/clip_high_frac": "A > 0, cut above u",
    "objective/clip_low_frac": "A < 0, cut below l",
    "objective/clip_runaway_frac": "A < 0, cut above u",
    "objective/outside_high_frac": "outside, w > u",
    "objective/outside_low_frac": "outside, w < l",
}
"""Shares of tokens that a run records, by what they are."""
_CUT_AT = ((0, 1), (1, 0), (1, 1))
"""Where `RatioCounts.cut_S2` holds the first three of them."""
ESTIMATES = {f"objective/kl_{name}": name for name in ("k1", "k2", "k3")}
"""Estimates of the KL divergence."""
QUANTILES = tuple(f"objective/ratio_p{part}" for part in ("01", "05", "25", "50", "75", "95", "99"))
"""Quantiles of the ratio of a step's tokens."""
OF_METHODS = {
    "objective/clip_high_frac": "A > 0, cut above u",
    "objective/clip_low_frac": "A < 0, cut below l",
    "objective/entropy": "Entropy",
    "objective/kl_k3": "KL(behavior || policy), k3",
    "objective/kl_after_update": "KL to the sampler after the last update",
}
"""Curves that methods are compared by, with their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The ratios of a method: its window or why it has none, the counts, and the place of its color."""

    name: str
    window: Window | None
    reason: str
    counts: RatioCounts
    place: int = 0
    num_seeds: int = 1


def run_document(
    divergence: str,
    region: Counted,
    recorded: RatioCounts,
    edges: Edges | None,
    panels: Mapping[str, Panel],
    *,
    num_files: int,
    why_none: str,
) -> Document:
    """One run's ratios: how its tokens lie in the window, and shares cut, ratios and KL over time.

    `recorded` counts the tokens of recorded rollouts, whose cuts are known; `panels` are curves by quantity.
    """
    window = region.window
    bounds = f"window [l, u] = [{_bound(window.lower)}, {_bound(window.upper)}]" if window else region.reason
    total = float(recorded.count_SB.sum())
    cut = [
        (CUTS[name], recorded.cut_S2[at]) for name, at in zip(CUTS, ((0, 1), (1, 0), (1, 1)), strict=False)
    ]
    shares = "; ".join(f"{name}: {value_text(num / total, 'share')} %" for name, num in cut if total)
    files = f"{counted(int(total), 'token')} in {counted(num_files, 'file')} of rollouts"
    figures: list[Figure] = []
    if edges is not None:
        figures.append(_histogram(region, edges))
    shown = (
        ("Shares of tokens cut and outside", CUTS),
        ("KL(behavior || policy), three estimates", ESTIMATES),
    )
    for title, names in shown:
        known = [panels[name] for name in names if name in panels]
        if known:
            key = known[0]["name"]
            made = curves_figure(known, axis="step", band="none", title=title, labels=names, key=key)
            figures.append(made)
    if all(name in panels for name in QUANTILES):
        figures.insert(2, _fan([panels[name]["series"][0] for name in QUANTILES], window))
    return Document(
        key="trust-region",
        title=f"{divergence}: {bounds}",
        answer=(Sentence(f"{files}. {shares}", key="cut"),),
        alerts=() if edges is not None else (Sentence(why_none, "warning"),),
        sections=(Section(title="", figures=tuple(figures)),),
    )


def methods_document(
    arms: Sequence[Counted],
    edges: Edges | None,
    panels: Sequence[Panel],
    *,
    until: int,
    others: Sequence[str],
    num_left_out: int,
) -> Document:
    """Methods side by side, their seeds pooled: windows, ratios by the sign of the advantage, curves."""
    rows = tuple(
        Row((arm.name, arm.num_seeds, *_ends(arm.window), arm.reason), place=arm.place) for arm in arms
    )
    columns = (Column("Method"), Column("Seeds"), Column("l"), Column("u"), Column("", is_prose=True))
    table = Table(key="windows", title="Windows [l, u]", columns=columns, rows=rows)
    figures: list[Figure] = []
    known = [arm for arm in arms if arm.counts.count_SB.sum()]
    if edges is not None and known:
        figures += [_side_by_side(known, edges, sign) for sign in SIGNS[:2]]
    drawn = [panel for panel in panels if panel["series"]]
    figures += [_curve(panel, arms, until) for panel in drawn]
    missing = f"{counted(num_left_out, 'run')} without a step left out"
    notes = [f"other runs: {name}" for name in others] + [missing] * bool(num_left_out)
    return Document(
        key="trust-region",
        title=f"All methods at steps 1 to {until}",
        notes=tuple(Sentence(note, "warning") for note in notes),
        sections=(Section(title="", figures=tuple(figures), tables=(table,)),),
    )


def _histogram(region: Counted, edges: Edges) -> Lines:
    """The tokens of a run by ratio and sign of the advantage."""
    rows = zip(_SIGN_NAMES.values(), binned(region.counts, edges), (2, 3, 4), strict=True)
    return Lines(
        key="ratios",
        title="Ratios against the window",
        caption="tokens by ratio and sign of the advantage; the ends hold all beyond",
        x=Axis(title="ratio w", scale="log"),
        y=Axis(title="tokens", scale="log"),
        series=tuple(_steps(name, edges, count_B, place) for name, count_B, place in rows),
        marks=tuple(Mark(name=f"{name} = {_bound(at)}", x=at) for name, at in _named(region.window)),
    )


def _side_by_side(arms: Sequence[Counted], edges: Edges, sign: str) -> Lines:
    """The share of a sign's tokens by ratio, a curve per method, with the windows dotted."""
    at = SIGNS.index(sign)
    shares = [binned(arm.counts, edges)[at] for arm in arms]
    return Lines(
        key=f"ratios-{sign}",
        title=f"Ratios where {_SIGN_NAMES[sign]}",
        caption="share of these tokens, seeds pooled; the ends hold all beyond; dotted: windows",
        x=Axis(title="ratio w", scale="log"),
        y=Axis(title="% of tokens", unit="share", scale="log"),
        series=tuple(
            _steps(arm.name, edges, share_B / max(share_B.sum(), 1.0), arm.place)
            for arm, share_B in zip(arms, shares, strict=True)
        ),
        marks=tuple(Mark(x=bound, place=arm.place) for arm in arms for _, bound in _named(arm.window)),
    )


def _steps(name: str, edges: Edges, value_B: NDArray[np.float64], place: int) -> Series:
    """A histogram as a curve of steps; a log axis has no zero, so empty bins are gaps."""
    y = tuple(float(f"{value:.5g}") if value > 0 else None for value in value_B)
    x = tuple(float(f"{edge:.6g}") for edge in np.exp(edges))
    return Series(name=name, x=x, y=(*y, y[-1]), place=place, is_step=True)


def _fan(quantiles: Sequence[Panel], window: Window | None) -> Lines:
    """Quantiles of the ratio over time: bands around the median."""
    middle = len(quantiles) // 2
    median, x = quantiles[middle], tuple(quantiles[middle]["x"])
    ends = [(tuple(quantiles[at]["y"]), tuple(quantiles[-1 - at]["y"])) for at in range(middle)]
    bands = [Series(name="", x=x, y=(None,) * len(x), low=low, high=high) for low, high in ends]
    return Lines(
        key="quantiles",
        title="Ratios over time",
        caption="median; bands: 1 to 99, 5 to 95 and 25 to 75 % of tokens; dotted: the window",
        x=_STEPS,
        y=Axis(title="ratio w"),
        series=(*bands, Series(name="median", x=x, y=tuple(median["y"]))),
        marks=tuple(Mark(name=f"{name} = {_bound(at)}", y=at) for name, at in _named(window)),
    )


def _curve(panel: Panel, arms: Sequence[Counted], until: int) -> Lines:
    """A curve per method, up to the last step that all of them made."""
    place = {arm.name: arm.place for arm in arms}
    series = []
    for one in panel["series"]:
        if one["label"] not in place:
            continue
        num = sum(step <= until for step in one["x"])
        cut = {name: one[name][:num] for name in ("x", "y", "low", "high") if one.get(name)}
        series.append({**one, **cut, "num": 1, "place": place[one["label"]]})
    name = panel["name"]
    shown = [{**panel, "series": series}]
    return curves_figure(shown, axis="step", band="range", title=OF_METHODS[name], key=name)


def _named(window: Window | None) -> list[tuple[str, float]]:
    ends = (("l", window.lower), ("u", window.upper)) if window else ()
    return [(name, bound) for name, bound in ends if 0.0 < bound < math.inf]


def _ends(window: Window | None) -> tuple[Value | None, Value | None]:
    unit: Unit = "ratio"
    return (Value(window.lower, unit), Value(window.upper, unit)) if window else (None, None)


def _bound(value: float) -> str:
    return value_text(value, "ratio")
