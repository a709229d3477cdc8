"""Pictures of what `atrium theory` finds, one per finding; each is a PNG and an SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.theory.results import (
    CoefficientCurves,
    EstimatorBias,
    Faithfulness,
    MethodWindow,
    RegressionFindings,
    UpdateCourse,
)
from atrium.views.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    MARKERS,
    ORANGE,
    line_style,
    new_figure,
    save_both,
    style,
    use_cache,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Paths = tuple[Path, Path]
_PANEL_INCHES = (4.8, 4.4)
_LEAST_ERROR = 1e-9


def draw_gradients(curves: Sequence[CoefficientCurves], folder: Path, cache_dir: Path) -> Paths:
    """Each method's coefficient on a token's gradient against the ratio, relative to that at w = 1."""
    figure, panels = _panels("What a token's gradient is multiplied by", 1, 2, cache_dir)
    for side, axes in enumerate(panels):
        for index, curve in enumerate(curves):
            values = (curve.raised, curve.lowered)[side]
            scale = abs(curve.at_one[side]) or 1.0
            _draw_line(axes, curve.ratio, [value / scale for value in values], index, curve.name)
        title = ("advantage above 0", "advantage below 0")[side]
        style(axes, title=title, x="ratio w", y="coefficient / |coefficient at w = 1|")
        axes.set_ylim(*((-0.6, 2.6), (-2.6, 0.6))[side])
    _draw_legend(panels[0])
    return save_both(figure, folder, "theory-gradients")


def draw_method_windows(windows: Sequence[MethodWindow], folder: Path, cache_dir: Path) -> Paths:
    """Each method's bounds on a linear and a log axis; a window by the token's probability is a bar per q."""
    figure, panels = _panels("Windows and their asymmetry", 1, 2, cache_dir)
    for axes, is_log in zip(panels, (False, True), strict=True):
        low, high = (-0.9, 0.9) if is_log else (0.0, 2.0)
        centre = 0.0 if is_log else 1.0
        for row, method in enumerate(windows):
            found = method.by_probability or (() if method.constant is None else (method.constant,))
            for window in found:
                lower, upper = (_log(bound) if is_log else bound for bound in (window.lower, window.upper))
                alpha = 1.0 / len(found)
                for bound, colour in ((max(lower, low), ORANGE), (min(upper, high), BLUE)):
                    axes.barh(row, bound - centre, left=centre, color=colour, height=0.5, alpha=alpha)
        axes.set_yticks(range(len(windows)), [method.name for method in windows])
        axes.set_ylim(len(windows) - 0.4, -0.6)
        axes.set_xlim(low, high)
        style(axes, title="how far it reaches on either side", x="log w" if is_log else "ratio w")
    return save_both(figure, folder, "theory-windows")


def draw_updates(
    courses: Mapping[str, Sequence[UpdateCourse]],
    bin_edges: Sequence[float],
    folder: Path,
    cache_dir: Path,
) -> Paths:
    """For each kind of reward: entropy, KL and moved probability while one batch is used again and again."""
    title = "Where probability goes when a batch is used several times"
    figure, panels = _panels(title, len(courses), 3, cache_dir)
    bins = [f"{100 * low:g}–{100 * high:g} %" for low, high in pairwise(bin_edges)]
    updates = "updates on one batch"
    for row, (rewards, found) in enumerate(courses.items()):
        entropy, distance, mass = panels[3 * row : 3 * row + 3]
        for index, course in enumerate(found):
            for axes, values in ((entropy, course.entropy_change), (distance, course.kl)):
                _draw_line(axes, range(len(values) + 1), [0.0, *values], index, course.name)
            _draw_line(mass, range(len(bins)), course.mass_change, index, course.name)
        mass.set_xticks(range(len(bins)), bins)
        style(entropy, title=f"{rewards}: entropy change", x=updates, y="nats per completion")
        style(distance, title=f"{rewards}: KL(behavior ‖ policy)", x=updates)
        style(mass, title=f"{rewards}: probability moved", x="behavior probability of the completion")
    _draw_legend(panels[0])
    return save_both(figure, folder, "theory-updates")


def draw_moved_mass(
    courses: Mapping[str, Sequence[UpdateCourse]],
    bin_edges: Sequence[float],
    folder: Path,
    cache_dir: Path,
) -> Paths:
    """For each kind of reward: the probability that moves, by how likely completions were."""
    figure, panels = _panels("Where probability goes when a batch is used several times", 1, 2, cache_dir)
    bins = [f"{100 * low:g}–{100 * high:g} %" for low, high in pairwise(bin_edges)]
    for axes, (rewards, found) in zip(panels, courses.items(), strict=True):
        for index, course in enumerate(found):
            _draw_line(axes, range(len(bins)), course.mass_change, index, course.name)
        axes.set_xticks(range(len(bins)), bins)
        style(axes, title=rewards, x="behavior probability of the completion", y="probability moved")
    _draw_legend(panels[0])
    return save_both(figure, folder, "theory-moved-mass")


def draw_entropy_change(
    courses: Mapping[str, Sequence[UpdateCourse]], folder: Path, cache_dir: Path
) -> Paths:
    """For each kind of reward: entropy while one batch is used again and again."""
    figure, panels = _panels("Entropy when a batch is used several times", 1, 2, cache_dir)
    for axes, (rewards, found) in zip(panels, courses.items(), strict=True):
        for index, course in enumerate(found):
            values = [0.0, *course.entropy_change]
            _draw_line(axes, range(len(values)), values, index, course.name)
        style(axes, title=rewards, x="updates on one batch", y="entropy change, nats per completion")
    _draw_legend(panels[0])
    return save_both(figure, folder, "theory-entropy")


def draw_bias(
    biases: Sequence[EstimatorBias], methods: Sequence[Faithfulness], folder: Path, cache_dir: Path
) -> Paths:
    """Errors of KL estimators at token and sequence level, and how well methods follow the true gradient."""
    figure, panels = _panels("Token level against sequence level", 1, 3, cache_dir)
    lengths = sorted({bias.num_tokens for bias in biases})
    names = list(dict.fromkeys(bias.name for bias in biases))
    for axes, where in zip(panels, ("on-policy", "off-policy"), strict=False):
        for num_tokens, marker, colour in zip(lengths, MARKERS, COLOURS, strict=False):
            found = [
                b for b in biases if b.num_tokens == num_tokens and b.is_on_policy == (where == "on-policy")
            ]
            rows = [names.index(bias.name) for bias in found]
            errors = [bias.token_error for bias in found]
            axes.plot(errors, rows, marker, color=colour, label=f"token level, T = {num_tokens}")
            if num_tokens == lengths[-1]:
                errors = [bias.sequence_error for bias in found]
                axes.plot(
                    errors, rows, "|", color=GREY, markersize=13, label=f"sequence level, T = {num_tokens}"
                )
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        style(axes, title=f"KL penalties, {where}", x="relative error of the expected gradient")
    for index, method in enumerate(methods):
        _draw_line(panels[2], method.distance_kl, method.cosine, index, method.name)
    style(
        panels[2], title="cosine with the true reward gradient", x="KL(behavior ‖ policy) along that gradient"
    )
    for axes in panels[1:]:
        axes.legend(frameon=False, fontsize=8)
    return save_both(figure, folder, "theory-bias")


def draw_regression(findings: RegressionFindings, folder: Path, cache_dir: Path) -> Paths:
    """GVPO: its optimum under several samplers, beside one that moves; and its steps on the frontier."""
    figure, (errors, frontier) = _panels("GVPO: one optimum, whatever the sampler", 1, 2, cache_dir)
    for index, objective in enumerate(dict.fromkeys(optimum.objective for optimum in findings.optima)):
        found = [optimum for optimum in findings.optima if optimum.objective == objective]
        samplers = [optimum.sampler.replace(" ", "\n", 1) for optimum in found]
        sizes = [max(optimum.max_difference, _LEAST_ERROR) for optimum in found]
        errors.plot(samplers, sizes, MARKERS[index], color=COLOURS[index], label=objective)
    errors.set_yscale("log")
    style(errors, title="distance of the optimum from π*, by sampler", y="largest difference in probability")
    steps = findings.steps
    frontier.plot(steps.frontier_kl, steps.frontier_reward, color=GREY, label="best reward at a KL")
    frontier.plot(steps.kl, steps.reward, "o", color=BLUE, label=f"GVPO after 1 to {len(steps.kl)} steps")
    style(frontier, title="a larger KL allowance, same frontier", x="KL(policy ‖ first policy)", y="E[R]")
    for axes in (errors, frontier):
        axes.legend(frameon=False, fontsize=8)
    return save_both(figure, folder, "theory-gvpo")


def _panels(title: str, num_rows: int, num_columns: int, cache_dir: Path) -> tuple[Figure, list[Axes]]:
    """A titled figure with a grid of panels, row by row."""
    width, height = _PANEL_INCHES
    use_cache(cache_dir)
    figure = new_figure((num_columns * width, num_rows * height + 0.4), "constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    return figure, list(figure.subplots(num_rows, num_columns, squeeze=False).flat)


def _draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], index: int, name: str) -> None:
    colour, dashes = line_style(index)
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.8, label=name)


def _draw_legend(axes: Axes) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False, fontsize=9)


def _log(bound: float) -> float:
    return math.log(bound) if bound else -math.inf
