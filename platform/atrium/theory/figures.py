"""The figures of `atrium theory` as data, with one picture for each part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from atrium.document.document import Axis, Bars, Bounds, Intervals, Lines, Mark, Picture, Series
from atrium.theory.findings import Findings
from atrium.theory.results import (
    CoefficientCurves,
    EstimatorBias,
    Faithfulness,
    MethodWindow,
    RegressionFindings,
    UpdateCourse,
)

Courses = Mapping[str, Sequence[UpdateCourse]]
_UPDATES = Axis(title="updates on one batch", unit="count")
_BEHAVIOR = "behavior probability of the completion"
_REUSE = "Change of probability during several updates on one batch"
_LEAST_ERROR = 1e-9


def pictures(findings: Findings) -> list[Picture]:
    """Return a picture for each non-empty part of the findings."""
    found = [gradient_picture(findings.curves)] if findings.curves else []
    found += [window_picture(findings.windows)] if findings.windows else []
    found += [update_picture(findings.courses, findings.bin_edges)] if findings.courses else []
    found += [bias_picture(findings.biases, findings.faithfulness)] if findings.biases else []
    found += [] if findings.regression is None else [regression_picture(findings.regression)]
    return found


def gradient_picture(curves: Sequence[CoefficientCurves]) -> Picture:
    """Return a picture of each method's token coefficient by ratio, relative to the coefficient at w = 1."""
    panels = []
    for side, (low, high) in enumerate(((-0.6, 2.6), (-2.6, 0.6))):
        scaled = []
        for curve in curves:
            scale = abs(curve.at_one[side]) or 1.0
            y = [value / scale for value in (curve.raised, curve.lowered)[side]]
            scaled.append((curve.name, curve.ratio, y))
        title = ("advantage above 0", "advantage below 0")[side]
        y_axis = Axis(title="coefficient / |coefficient at w = 1|", low=low, high=high)
        panels.append(_curves(title, Axis(title="ratio w"), y_axis, scaled))
    return _picture("gradients", "Coefficient of a token's gradient", panels)


def window_picture(windows: Sequence[MethodWindow]) -> Picture:
    """Return a picture of each method's window on a linear and on a log axis.

    For a window that varies between tokens, the widest and the narrowest window are shown.
    """
    panels = []
    for is_log in (False, True):
        low, high = (-0.9, 0.9) if is_log else (0.0, 2.0)
        rows = [_bounds(method, (low, high), is_log=is_log) for method in windows]
        panels.append(
            Bars(
                key=f"windows/{'log' if is_log else 'linear'}",
                title="window on a log scale" if is_log else "window on a linear scale",
                caption="Pale: widest window of any token." if not is_log else "",
                x=Axis(title="log w" if is_log else "ratio w", low=low, high=high),
                rows=tuple(rows),
                marks=(Mark(x=0.0 if is_log else 1.0),),
            )
        )
    return _picture("windows", "Windows and their asymmetry", panels)


def _bounds(method: MethodWindow, ends: tuple[float, float], *, is_log: bool) -> Bounds:
    """Return the widest and the narrowest window of a method, clamped to the axis range `ends`."""
    found = method.by_probability or (() if method.constant is None else (method.constant,))

    def shown(lower: float, upper: float) -> tuple[float, float]:
        low, high = (_log(bound) if is_log else bound for bound in (lower, upper))
        return max(low, ends[0]), min(high, ends[1])

    if not found:
        return Bounds(name=method.name)
    lowers, uppers = [window.lower for window in found], [window.upper for window in found]
    return Bounds(
        name=method.name,
        outer=shown(min(lowers), max(uppers)),
        inner=shown(max(lowers), min(uppers)),
    )


def update_picture(courses: Courses, bin_edges: Sequence[float]) -> Picture:
    """Return panels of entropy change, KL and moved probability, for each kind of reward.

    The moved probability is the change of probability in each bin of behavior probability.
    """
    panels = []
    for rewards, found in courses.items():
        panels += [
            _entropy(f"{rewards}: entropy change", "nats per completion", found),
            _course(f"{rewards}: KL(behavior ‖ policy)", "", ((one.name, (0.0, *one.kl)) for one in found)),
            _moved(f"{rewards}: moved probability", "", found, bin_edges),
        ]
    return _picture("updates", _REUSE, panels, num_columns=3)


def moved_mass_picture(courses: Courses, bin_edges: Sequence[float]) -> Picture:
    """Return panels of the change of probability in each bin of behavior probability, by kind of reward."""
    panels = [_moved(rewards, "moved probability", found, bin_edges) for rewards, found in courses.items()]
    return _picture("moved-mass", _REUSE, panels)


def entropy_picture(courses: Courses) -> Picture:
    """Return panels of the entropy change by number of updates, one for each kind of reward."""
    unit = "entropy change, nats per completion"
    panels = [_entropy(rewards, unit, found) for rewards, found in courses.items()]
    return _picture("entropy", "Entropy during several updates on one batch", panels)


def bias_picture(biases: Sequence[EstimatorBias], methods: Sequence[Faithfulness]) -> Picture:
    """Return panels of the errors of KL estimators, and of the cosines of gradients with the true gradient.

    The errors are shown for penalties at token level and at sequence level. The cosines are those of each
    method's expected gradient with that of the expected reward.
    """
    lengths = sorted({bias.num_tokens for bias in biases})
    errors = [
        Intervals(
            key=f"bias/{'on' if is_on_policy else 'off'}-policy",
            title=f"KL penalties, {'on' if is_on_policy else 'off'}-policy",
            caption="Dots: at token level. Lines: at sequence level.",
            x=Axis(title="relative error of the expected gradient"),
            rows=tuple(
                Bounds(
                    name=f"{bias.name}, T = {bias.num_tokens}",
                    place=lengths.index(bias.num_tokens),
                    value=bias.sequence_error,
                    dots=(bias.token_error,),
                )
                for bias in biases
                if bias.is_on_policy == is_on_policy
            ),
        )
        for is_on_policy in (True, False)
    ]
    cosines = _curves(
        "cosine with the true reward gradient",
        Axis(title="KL(behavior ‖ policy) along that gradient"),
        Axis(),
        ((one.name, one.distance_kl, one.cosine) for one in methods),
    )
    return _picture("bias", "Bias at token level and at sequence level", [*errors, cosines], num_columns=3)


def regression_picture(findings: RegressionFindings) -> Picture:
    """Return a panel with the error of each objective by sampler, and a panel with GVPO's reward by KL.

    The error is the largest difference in a completion's probability between the optimum of the objective and
    GVPO's theoretical optimum. The second panel also shows the best reward at each KL.
    """
    steps, samplers = findings.steps, list(dict.fromkeys(one.sampler for one in findings.optima))
    errors = Lines(
        key="gvpo/optimum",
        title="distance of the optimum from π*, by sampler",
        x=Axis(labels=tuple(sampler.replace(" ", "\n", 1) for sampler in samplers)),
        y=Axis(title="largest difference in probability", scale="log"),
        series=tuple(
            Series(
                name=objective,
                x=tuple(float(samplers.index(one.sampler)) for one in found),
                y=tuple(max(one.max_difference, _LEAST_ERROR) for one in found),
                place=place,
                is_line=False,
            )
            for place, objective in enumerate(dict.fromkeys(one.objective for one in findings.optima))
            for found in [[one for one in findings.optima if one.objective == objective]]
        ),
    )
    frontier = Lines(
        key="gvpo/frontier",
        title="GVPO's steps and the best reward at each KL",
        x=Axis(title="KL(policy ‖ first policy)"),
        y=Axis(title="E[R]"),
        series=(
            Series(
                name="best reward at a KL",
                x=tuple(steps.frontier_kl),
                y=tuple(steps.frontier_reward),
                place=1,
            ),
            Series(
                name=f"GVPO after 1 to {len(steps.kl)} steps",
                x=tuple(steps.kl),
                y=tuple(steps.reward),
                is_line=False,
            ),
        ),
    )
    return _picture("gvpo", "GVPO: the optimum is the same for all samplers", [errors, frontier])


def _picture(
    name: str, title: str, panels: Sequence[Lines | Bars | Intervals], num_columns: int = 2
) -> Picture:
    return Picture(name=f"theory-{name}", title=title, figures=tuple(panels), num_columns=num_columns)


def _entropy(title: str, unit: str, found: Sequence[UpdateCourse]) -> Lines:
    return _course(title, unit, ((one.name, (0.0, *one.entropy_change)) for one in found))


def _course(title: str, unit: str, courses: Iterable[tuple[str, Sequence[float]]]) -> Lines:
    """Return curves of values by the number of updates."""
    curves = ((name, range(len(values)), values) for name, values in courses)
    return _curves(title, _UPDATES, Axis(title=unit), curves)


def _moved(title: str, unit: str, found: Sequence[UpdateCourse], bin_edges: Sequence[float]) -> Lines:
    """Return curves of each method's change of probability in each bin of behavior probability."""
    bins = tuple(f"{100 * low:g}–{100 * high:g} %" for low, high in pairwise(bin_edges))
    curves = ((one.name, range(len(bins)), one.mass_change) for one in found)
    return _curves(title, Axis(title=_BEHAVIOR, labels=bins), Axis(title=unit), curves)


def _curves(
    title: str, x: Axis, y: Axis, curves: Iterable[tuple[str, Sequence[float], Sequence[float]]]
) -> Lines:
    """Return a panel of curves, each given by (name, x, y)."""
    series = tuple(
        Series(name=name, x=tuple(map(float, places)), y=tuple(values), place=place)
        for place, (name, places, values) in enumerate(curves)
    )
    return Lines(key=title, title=title, x=x, y=y, series=series)


def _log(bound: float) -> float:
    return math.log(bound) if bound else -math.inf
