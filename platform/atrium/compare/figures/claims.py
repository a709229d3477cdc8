"""Figures of a claim's runs, as papers arrange them: curves by step, scores by arm and against k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atrium.document.palette import places
from atrium.views.figures.style import line_style, new_figure, save_png, style, use_cache

Values = NDArray[np.float64]
_INCHES = (9.2, 3.8)


def draw_claim_curves(
    title: str, metric: str, curves: Mapping[str, tuple[Values, Values]], path: Path, cache_dir: Path
) -> Path:
    """A line per arm: steps and the mean over seeds of the metric's moving mean."""
    use_cache(cache_dir)
    figure = new_figure(_INCHES, "constrained")
    axes = figure.add_subplot()
    place = places({arm: arm for arm in curves})
    for arm, (steps, values) in curves.items():
        colour, dashes = line_style(place[arm])
        axes.plot(steps, values, color=colour, linestyle=dashes, label=arm)
    axes.legend(frameon=False, fontsize=8)
    style(axes, title=title, x="training step", y=metric)
    return save_png(figure, path.parent, path.stem)


def draw_claim_scores(
    title: str,
    measure: str,
    scores: Mapping[str, Sequence[float]],
    by_k: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    cache_dir: Path,
) -> Path:
    """Each seed's score by arm, and beside it curves by arm against k = 1, 2, ..., one panel per name."""
    use_cache(cache_dir)
    figure = new_figure(_INCHES, "constrained")
    by_arm, *others = figure.subplots(1, 1 + len(by_k), squeeze=False)[0]
    place = places({arm: arm for arm in scores})
    for index, (arm, values) in enumerate(scores.items()):
        colour, _ = line_style(place[arm])
        shown = [100.0 * value for value in values]
        by_arm.plot([index] * len(shown), shown, "o", color=colour, alpha=0.5)
        by_arm.plot(index, float(np.mean(shown)), "_", color=colour, markersize=22)
    by_arm.set_xticks(range(len(scores)), list(scores), rotation=20, fontsize=7)
    style(by_arm, title=title, y=f"{measure}, %")
    for axes, (name, curves) in zip(others, by_k.items(), strict=True):
        for arm, values in curves.items():
            colour, dashes = line_style(place[arm])
            k = range(1, len(values) + 1)
            axes.plot(k, [100.0 * one for one in values], color=colour, linestyle=dashes, label=arm)
        axes.set_xscale("log", base=2)
        axes.legend(frameon=False, fontsize=7)
        style(axes, title=f"{name} against K", x="K", y="%")
    return save_png(figure, path.parent, path.stem)
