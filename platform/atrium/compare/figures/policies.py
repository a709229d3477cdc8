"""Figures of what methods do to a policy: where probability goes, how gradients are biased, GVPO's optimum.

Every function takes the findings of `atrium.theory` as plain numbers and writes one PNG and one SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from atrium.compare.figures.methods import WITH_LEGEND, Canvas, Paths, draw_legend
from atrium.compare.figures.style import BLUE, GREEN, GREY, MARKERS, ORANGE, PURPLE, line_style, style
from atrium.theory.results import EstimatorBias, Faithfulness, RegressionFindings, UpdateCourse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST_ERROR = 1e-9


def draw_updates(
    courses: Mapping[str, Sequence[UpdateCourse]], bin_edges: Sequence[float], canvas: Canvas
) -> Paths:
    """For each kind of reward: entropy, KL and moved probability while one batch is used again and again."""
    figure, panels = canvas.panels((14.4, 8.0), 2, 3, above=WITH_LEGEND)
    for row, (rewards, found) in enumerate(courses.items()):
        entropy, distance, mass = panels[3 * row : 3 * row + 3]
        for index, course in enumerate(found):
            colour, dashes = line_style(index)
            updates = range(len(course.kl) + 1)
            for axes, values in ((entropy, course.entropy_change), (distance, course.kl)):
                axes.plot(
                    updates, [0.0, *values], color=colour, linestyle=dashes, linewidth=1.8, label=course.name
                )
        style(entropy, title=f"{rewards}: entropy change", x="updates on one batch", y="nats per completion")
        style(
            distance,
            title=f"{rewards}: KL(behavior ‖ policy)",
            x="updates on one batch",
            y="nats per completion",
        )
        is_true = "random" not in rewards
        _draw_mass(mass, found, bin_edges, only_rewarded=is_true)
        whose = ", rewarded only" if is_true else ""
        style(mass, title=f"{rewards}: probability moved{whose}", x="behavior probability of the completion")
        mass.axhline(0.0, color=GREY, linewidth=0.8)
    draw_legend(figure, panels[0], len(courses[next(iter(courses))]))
    return canvas.save(figure, "theory-updates", "Where probability goes when a batch is used several times")


def _draw_mass(
    axes: Axes, courses: Sequence[UpdateCourse], bin_edges: Sequence[float], *, only_rewarded: bool
) -> None:
    width = 0.8 / len(courses)
    for index, course in enumerate(courses):
        values = course.rewarded_mass_change if only_rewarded else course.mass_change
        places = [position - 0.4 + (index + 0.5) * width for position in range(len(values))]
        axes.bar(
            places, values, width=0.92 * width, color=line_style(index)[0], hatch="//" if index >= 8 else None
        )
    texts = [f"{100 * low:g}–{100 * high:g} %" for low, high in pairwise(bin_edges)]
    texts[0] = f"below {100 * bin_edges[1]:g} %"
    texts[-1] = f"above {100 * bin_edges[-2]:g} %"
    axes.set_xticks(range(len(texts)), texts)


def draw_bias(biases: Sequence[EstimatorBias], methods: Sequence[Faithfulness], canvas: Canvas) -> Paths:
    """Errors of KL estimators at token and sequence level, and how well methods follow the true gradient."""
    figure, panels = canvas.panels((14.4, 5.6), 1, 3, before=0.95)
    for axes, on_policy in zip(panels[:2], (True, False), strict=True):
        chosen = [bias for bias in biases if bias.is_on_policy is on_policy]
        _draw_errors(axes, chosen, with_names=on_policy)
        where = "on-policy" if on_policy else "off-policy"
        style(axes, title=f"KL penalties, {where}", x="relative error of the expected gradient")
    panels[0].legend(frameon=True, framealpha=0.9, edgecolor="white", fontsize=8, loc="lower right")
    for index, found in enumerate(methods):
        colour, dashes = line_style(index)
        panels[2].plot(
            found.distance_kl, found.cosine, color=colour, linestyle=dashes, linewidth=1.8, label=found.name
        )
    style(
        panels[2],
        title="methods: cosine with the true reward gradient",
        x="KL(behavior ‖ policy) along that gradient",
    )
    lowest = min(cosine for found in methods for cosine in found.cosine)
    panels[2].set_ylim(min(lowest, 0.0) - 0.05, 1.05)
    panels[2].legend(frameon=True, framealpha=0.85, edgecolor="white", fontsize=8, loc="best")
    return canvas.save(figure, "theory-bias", "Token level against sequence level")


def _draw_errors(axes: Axes, biases: Sequence[EstimatorBias], *, with_names: bool) -> None:
    names = list(dict.fromkeys(bias.name for bias in biases))
    lengths = sorted({bias.num_tokens for bias in biases})
    for num_tokens, marker in zip(lengths, MARKERS, strict=False):
        found = [bias for bias in biases if bias.num_tokens == num_tokens]
        rows = [names.index(bias.name) for bias in found]
        shift = 0.16 * (lengths.index(num_tokens) - 0.5 * (len(lengths) - 1))
        colour = (GREY, BLUE, GREEN, PURPLE)[lengths.index(num_tokens) % 4]
        heights = [row + shift for row in rows]
        errors = [bias.token_error for bias in found]
        axes.plot(
            errors, heights, marker, color=colour, markersize=5.5, label=f"token level, T = {num_tokens}"
        )
    longest = [bias for bias in biases if bias.num_tokens == lengths[-1]]
    axes.plot(
        [bias.sequence_error for bias in longest],
        [names.index(bias.name) for bias in longest],
        "|",
        color=ORANGE,
        markersize=13,
        markeredgewidth=2.2,
        label=f"sequence level, T = {lengths[-1]}",
    )
    axes.set_yticks(range(len(names)), names if with_names else [""] * len(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(left=-0.04)


def draw_regression(findings: RegressionFindings, canvas: Canvas) -> Paths:
    """GVPO: its optimum under several samplers, beside one that moves; and its steps on the frontier."""
    figure, (errors, bars, frontier) = canvas.panels((14.4, 5.0), 1, 3)
    objectives = list(dict.fromkeys(optimum.objective for optimum in findings.optima))
    samplers = list(dict.fromkeys(optimum.sampler for optimum in findings.optima))
    for index, objective in enumerate(objectives):
        found = [optimum for optimum in findings.optima if optimum.objective == objective]
        places = [samplers.index(optimum.sampler) - 0.2 + 0.4 * index for optimum in found]
        sizes = [max(optimum.max_difference, _LEAST_ERROR) for optimum in found]
        errors.bar(places, sizes, width=0.36, color=(BLUE, ORANGE)[index % 2], label=objective)
    errors.set_yscale("log")
    errors.set_ylim(_LEAST_ERROR / 2.0, 1.0)
    errors.set_xticks(range(len(samplers)), [sampler.replace(" ", "\n", 1) for sampler in samplers])
    errors.legend(frameon=False, fontsize=8, loc="upper right")
    style(errors, title="distance of the optimum from π*, by sampler", y="largest difference in probability")
    _draw_optimum(bars, findings)
    steps = findings.steps
    frontier.plot(
        steps.frontier_kl, steps.frontier_reward, color=GREY, linewidth=1.6, label="best reward at a KL"
    )
    frontier.plot(steps.kl, steps.reward, "o", color=BLUE, markersize=7, label="GVPO after n steps")
    for number, (x, y) in enumerate(zip(steps.kl, steps.reward, strict=True), start=1):
        frontier.annotate(f"n = {number}", (x, y), (7, -11), textcoords="offset points", fontsize=8.5)
    frontier.legend(frameon=False, fontsize=8, loc="lower right")
    style(
        frontier,
        title="n steps: a larger KL allowance, same frontier",
        x="KL(policy ‖ first policy)",
        y="E[R]",
    )
    return canvas.save(figure, "theory-gvpo", "GVPO: one optimum, whatever the sampler")


def _draw_optimum(axes: Axes, findings: RegressionFindings) -> None:
    """π* of every completion, and both objectives' optima under the sampler that moves the other one most."""
    moved = max(findings.optima, key=lambda optimum: optimum.max_difference)
    shown = [optimum for optimum in findings.optima if optimum.sampler == moved.sampler]
    order = sorted(range(len(findings.optimum_B)), key=lambda row: -findings.optimum_B[row])
    heights = [findings.optimum_B[row] for row in order]
    axes.bar(range(len(order)), heights, color="#D5D8DC", width=0.8, label="π* = π′ exp(R / β) / Z")
    for optimum, marker, colour in zip(shown, ("o", "X"), (BLUE, ORANGE), strict=False):
        values = [optimum.probability_B[row] for row in order]
        axes.plot(range(len(order)), values, marker, color=colour, markersize=6, label=optimum.objective)
    axes.set_xticks([])
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    style(
        axes, title=f"optima under “{moved.sampler}”", x="completions, the most likely first", y="probability"
    )
