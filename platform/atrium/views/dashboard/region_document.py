"""Documents that show importance ratios and the window, for one run or for several methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atrium.base.records import Floats
from atrium.compare.trust_region import SIGNS, binned
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

_SIGN_NAMES = dict(zip(SIGNS, ("A > 0", "A < 0", "A = 0"), strict=True))
_STEPS = Axis(title="training step", unit="count")
CLIPPED = {
    "objective/clip_high_frac": "A > 0, clipped above the window",
    "objective/clip_low_frac": "A < 0, clipped below the window",
    "objective/clip_runaway_frac": "A < 0, clipped above the window",
}
"""Titles of the recorded shares of clipped tokens, by metric."""
CUTS = CLIPPED | {
    "objective/outside_high_frac": "outside, above the window",
    "objective/outside_low_frac": "outside, below the window",
}
"""Titles of the recorded shares of clipped and outside tokens, by metric."""
_CUT_MEANING = (
    "of the tokens in each step's updates. Outside: beyond a bound of the window. Clipped: outside, and "
    "without gradient"
)
ESTIMATES = {f"objective/kl_{name}": name for name in ("k1", "k2", "k3")}
"""Estimators of the KL divergence, by metric."""
QUANTILES = tuple(f"objective/ratio_p{part}" for part in ("01", "05", "25", "50", "75", "95", "99"))
"""Metrics of the quantiles of the ratio over a step's tokens."""
OF_METHODS = {
    "objective/clip_high_frac": CLIPPED["objective/clip_high_frac"],
    "objective/clip_low_frac": CLIPPED["objective/clip_low_frac"],
    "objective/entropy": "Entropy",
    "objective/kl_k3": "KL(behavior || policy), k3",
    "objective/kl_after_update": "KL to the sampler after the last update",
}
"""Titles of the curves for a comparison of methods, by metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Token counts [signs, fine bins] of a run or a method, and its window.

    `window` is None if the method has no constant window, and `reason` then says why. `place` is the color
    index.
    """

    name: str
    window: Window | None
    reason: str
    count_SB: Floats
    place: int = 0
    num_seeds: int = 1


def run_document(
    divergence: str,
    region: Counted,
    edges: Floats | None,
    panels: Mapping[str, Panel],
    columns: Mapping[str, Floats],
    *,
    step: int | None,
    why_none: str,
) -> Document:
    """Return the document of a run: a histogram of ratios, and clipped shares, quantiles and KL by step.

    `region` has the counts at `step` (None means all steps). `edges` are the bin edges in log w; if they
    are None, the document shows the warning `why_none` instead of the histogram. `panels` maps metrics to
    their curves, and `columns` maps them to their values at all steps.
    """
    window = region.window
    bounds = f"window [{_bound(window.lower)}, {_bound(window.upper)}]" if window else region.reason
    figures: list[Figure] = []
    if edges is not None:
        figures.append(_histogram(region, edges, "all steps" if step is None else f"step {step}"))
    shown = (
        ("Shares of tokens clipped and outside", _CUT_MEANING, CUTS),
        ("KL(behavior || policy), three estimates", "", ESTIMATES),
    )
    for title, caption, names in shown:
        known = [panels[name] for name in names if name in panels]
        if known:
            key = known[0]["name"]
            made = curves_figure(known, axis="step", band="none", title=title, labels=names, key=key)
            figures.append(replace(made, caption=caption))
    if all(name in panels for name in QUANTILES):
        figures.insert(2, _fan([panels[name]["series"][0] for name in QUANTILES], window))
    return Document(
        key="trust-region",
        title=f"{divergence}: {bounds}",
        answer=clipped_sentences(columns, step),
        alerts=() if edges is not None else (Sentence(why_none, "warning"),),
        sections=(Section(title="", figures=tuple(figures)),),
    )


def clipped_sentences(columns: Mapping[str, Floats], step: int | None) -> tuple[Sentence, ...]:
    """Return a sentence on the shares of clipped tokens at `step` (None means all steps).

    `columns` maps a run's metrics to their values at all steps. A token counts once per update. If there
    was no update, no sentence is returned.
    """
    known = [name for name in CLIPPED if name in columns]
    weight_N = np.nan_to_num(columns.get("optimizer/num_trained_tokens", np.zeros(0)))
    if step is not None and len(weight_N):
        weight_N = weight_N * (columns["step"] == step)
    if not weight_N.sum():
        return ()
    shares = [np.average(np.nan_to_num(columns[name]), weights=weight_N) for name in known]
    said = "; ".join(
        f"{CLIPPED[name]}: {value_text(float(share), 'share')} %"
        for name, share in zip(known, shares, strict=True)
    )
    num_steps = int((weight_N > 0).sum())
    where = f"step {step}" if step is not None else counted(num_steps, "step")
    tokens = counted(int(weight_N.sum()), "token")
    return (Sentence(f"{tokens} in the updates of {where}, counted once per update. {said}", key="cut"),)


def methods_document(
    arms: Sequence[Counted],
    edges: Floats | None,
    panels: Sequence[Panel],
    *,
    until: int,
    others: Sequence[str],
    num_left_out: int,
) -> Document:
    """Return the document of several methods: windows, ratios by sign of the advantage, and curves.

    `edges` are the bin edges in log w. `until` is the last step shown. `others` names runs that are not
    shown, and `num_left_out` is the number of runs without a finished step.
    """
    rows = tuple(
        Row((arm.name, arm.num_seeds, *_ends(arm.window), arm.reason), place=arm.place) for arm in arms
    )
    titles = ("Method", "Seeds", "Lower bound", "Upper bound")
    columns = (*map(Column, titles), Column("", is_prose=True))
    table = Table(key="windows", title="Windows of the ratio", columns=columns, rows=rows)
    figures: list[Figure] = []
    known = [arm for arm in arms if arm.count_SB.sum()]
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


def _histogram(region: Counted, edges: Floats, where: str) -> Lines:
    """Return the histogram of a run's tokens by ratio, for each sign of the advantage.

    `where` names the counted steps.
    """
    rows = zip(_SIGN_NAMES.values(), binned(region.count_SB, edges), (2, 3, 4), strict=True)
    return Lines(
        key="ratios",
        title="Ratios against the window",
        caption=f"tokens in the updates of {where}, counted once per update; outer bins include all beyond",
        x=Axis(title="ratio w", scale="log"),
        y=Axis(title="tokens", scale="log", low=0.5),  # counts of wide bins are divided
        series=tuple(_steps(name, edges, count_B, place) for name, count_B, place in rows),
        marks=tuple(Mark(name=name, x=at) for name, at in _named(region.window)),
    )


def _side_by_side(arms: Sequence[Counted], edges: Floats, sign: str) -> Lines:
    """Return a figure of the methods' windows and histograms of ratios, for tokens of one advantage sign.

    `sign` is one of `SIGNS`.
    """
    at = SIGNS.index(sign)
    shares = [binned(arm.count_SB, edges)[at] for arm in arms]
    return Lines(
        key=f"ratios-{sign}",
        title=f"Ratios for {_SIGN_NAMES[sign]}",
        caption="share of these tokens, seeds pooled; outer bins include all beyond; dotted: windows",
        x=Axis(title="ratio w", scale="log"),
        y=Axis(title="% of tokens", unit="share", scale="log"),
        series=tuple(
            _steps(arm.name, edges, share_B / max(share_B.sum(), 1.0), arm.place)
            for arm, share_B in zip(arms, shares, strict=True)
        ),
        marks=tuple(Mark(x=bound, place=arm.place) for arm in arms for _, bound in _named(arm.window)),
    )


def _steps(name: str, edges: Floats, value_B: Floats, place: int) -> Series:
    """Return a histogram with bin edges in log w as a step curve over w.

    Empty bins are gaps, because a log axis has no zero.
    """
    y = tuple(float(f"{value:.5g}") if value > 0 else None for value in value_B)
    x = tuple(float(f"{edge:.6g}") for edge in np.exp(edges))
    return Series(name=name, x=x, y=(*y, y[-1]), place=place, is_step=True)


def _fan(quantiles: Sequence[Panel], window: Window | None) -> Lines:
    """Return the figure of the median ratio by step, with bands between pairs of quantiles.

    `quantiles` are in ascending order. The first one is paired with the last one, and so on.
    """
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
        marks=tuple(Mark(name=name, y=at) for name, at in _named(window)),
    )


def _curve(panel: Panel, arms: Sequence[Counted], until: int) -> Lines:
    """Return a figure with one curve per method, up to step `until`."""
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
    """Return the label and value of each bound of the window, except bounds of 0 or infinity."""
    ends = (("lower", window.lower), ("upper", window.upper)) if window else ()
    return [(f"{name} {_bound(bound)}", bound) for name, bound in ends if 0.0 < bound < math.inf]


def _ends(window: Window | None) -> tuple[Value | None, Value | None]:
    unit: Unit = "ratio"
    return (Value(window.lower, unit), Value(window.upper, unit)) if window else (None, None)


def _bound(value: float) -> str:
    return value_text(value, "ratio")
