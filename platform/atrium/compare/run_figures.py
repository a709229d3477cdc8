"""The figures of one run as data: training curves, evaluations by step, and scores against k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atrium.base.metrics import (
    CLIP_HIGH_FRAC,
    CLIP_LOW_FRAC,
    ENTROPY,
    LENGTH_MEAN,
    REWARD,
    Quantity,
    part_means,
)
from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import as_finite, as_interval, read_object
from atrium.compare.curves import moving_mean
from atrium.document.document import Axis, Lines, Picture, Series
from atrium.document.formatting import counted
from atrium.runs.layout import step_name
from atrium.runs.reader import EvaluationPoint, MetricTable, read_evaluations, read_metrics
from atrium.runs.run_folder import RunFolder

_STEPS = Axis(title="training step", unit="count")
_FEW_STEPS = 20
_BLUE, _ORANGE, _GREEN, _PURPLE = range(4)


def run_pictures(folder: RunFolder) -> list[Picture]:
    """Return a picture with the name `curves` that contains all panels, and a picture of each panel.

    The panel of a quantity that was not recorded says so. Raises `OSError` if a file cannot be read.
    """
    config, _ = read_object(folder.config_file)
    experiment = f"experiment {folder.path.absolute().parent.name}"
    labels = {"algorithm.name": "Training with", "divergence.kind": "divergence", "seed": "seed"}
    named = {label: setting(config, key) for key, label in labels.items()}
    parts = [f"{label} {value}" for label, value in named.items() if value is not None]
    title = ", ".join([*(parts or [folder.path.name]), experiment])
    figures = (_evaluations(read_evaluations(folder)), *_panels(read_metrics(folder)))
    whole = Picture(name="curves", title=title, figures=figures, num_columns=3)
    return [whole, *(Picture(name=one.key, title=title, figures=(one,)) for one in figures)]


def _panels(metrics: MetricTable) -> tuple[Lines, ...]:
    """Return the panels of reward, policy entropy, completion length and clipped tokens by step."""
    nats, tokens = Axis(title="nats per token", low=0.0), Axis(title="tokens", low=0.0)
    cut = Axis(title="share of tokens, %", unit="share", low=0.0)
    parts = part_means(metrics.columns)
    rewards = [(REWARD, "weighted sum" if parts else "", _BLUE)]
    rewards += [(mean, name, _BLUE + place) for place, (name, mean) in enumerate(parts.items(), start=1)]
    return (
        _panel(metrics, "reward", "Reward", Axis(title="mean per completion"), rewards),
        _panel(metrics, "entropy", "Policy entropy", nats, [(ENTROPY, "", _PURPLE)]),
        _panel(metrics, "completion_length", "Completion length", tokens, [(LENGTH_MEAN, "", _GREEN)]),
        _panel(
            metrics,
            "clip_shares",
            "Clipped tokens",
            cut,
            [(CLIP_HIGH_FRAC, "high side (A > 0)", _ORANGE), (CLIP_LOW_FRAC, "low side (A < 0)", _BLUE)],
        ),
    )


def _panel(
    metrics: MetricTable, key: str, title: str, y: Axis, quantities: Sequence[tuple[Quantity, str, int]]
) -> Lines:
    """Return a panel of quantities by step. With 20 or more steps, it adds moving means as thick lines."""
    num = len(metrics.steps)
    width = max(num // 20, 3) | 1  # odd, so that the mean is centered
    series: list[Series] = []
    for quantity, name, place in quantities:
        values = metrics.columns.get(quantity.name)
        if values is None or not np.isfinite(values).any():
            continue
        x, y_N = tuple(map(float, metrics.steps)), tuple(values.tolist())
        if num < _FEW_STEPS:
            series.append(Series(name=name, x=x, y=y_N, place=place, dash="solid", has_points=True))
            continue
        series.append(Series(name="", x=x, y=y_N, place=place, dash="solid", is_faint=True))
        smooth = tuple(moving_mean(values, width).tolist())
        series.append(Series(name=name, x=x, y=smooth, place=place, dash="solid"))
    caption = f"thick: moving mean of {width} steps" if series and num >= _FEW_STEPS else ""
    return Lines(key=key, title=title, caption=caption, x=_STEPS, y=y, series=tuple(series))


def _evaluations(evaluations: Mapping[str, Sequence[EvaluationPoint]]) -> Lines:
    """Return Mean@K with its interval (a band, or whiskers for at most two points) and Pass@K by step."""
    ks = {point.k for points in evaluations.values() for point in points}
    k = "K" if len(ks) != 1 or None in ks else str(ks.pop())
    series: list[Series] = []
    for place, (benchmark, points) in enumerate(evaluations.items()):
        x = tuple(float(point.step) for point in points)
        spans = [point.interval_over_problems or (None, None) for point in points]
        is_line = len(points) > 2  # between two points nothing was measured
        series.append(
            Series(
                name=f"{benchmark}, Mean@{k} with 95 % interval over problems",
                x=x,
                y=tuple(point.mean_at_k for point in points),
                low=tuple(low for low, _ in spans),
                high=tuple(high for _, high in spans),
                place=place,
                dash="solid",
                is_line=is_line,
                has_points=True,
                has_whiskers=not is_line,
            )
        )
        passed = tuple(point.pass_at_k for point in points)
        name = f"{benchmark}, Pass@{k}"
        series.append(
            Series(name=name, x=x, y=passed, place=place, dash="dashed", is_line=is_line, has_points=True)
        )
    return Lines(
        key="evaluation",
        title=f"Held-out problems: Mean@{k} and Pass@{k}",
        x=_STEPS,
        y=Axis(title="score, %", unit="share", low=0.0, high=1.03),
        series=tuple(series),
    )


def evaluation_pictures(folder: RunFolder) -> list[Picture]:
    """Return a picture per benchmark: the recorded scores of its latest evaluation against k.

    Evaluations with one sample per problem have no curve and are left out.
    """
    latest = [points[-1] for points in read_evaluations(folder).values()]
    return [
        Picture(
            name=f"pass_at_k-{point.benchmark}-{step_name(point.step)}", figures=(evaluation_figure(point),)
        )
        for point in latest
        if point.k is not None and point.k > 1 and _numbers(point.results, "curve.pass_at_k")
    ]


def evaluation_figure(point: EvaluationPoint) -> Lines:
    """Return a figure of Mean@k, Pass@k and Pass^k for k = 1..K, and of Maj@K if it was recorded.

    Recorded 95 % intervals over problems are included. As k grows, Pass@k increases and Pass^k decreases. The
    expectation of Mean@k is constant; only its noise changes.
    """
    results, k = point.results, point.k or 1
    num = "" if point.num_problems is None else f", {counted(point.num_problems, 'problem')}"
    series = [
        *_over_k(results, "Pass@k", "pass_at", _BLUE),
        *_over_k(results, "Pass^k", "pass_hat", _GREEN),
        _curve("Mean@k of the first k samples", _numbers(results, "curve.mean_at_k"), _ORANGE),
    ]
    if point.mean_at_k is not None and point.interval_over_problems is not None:
        series.append(_whiskers([(k, point.mean_at_k, point.interval_over_problems)], _ORANGE))
    majority = as_finite(results.get("maj_at_k"))
    if majority is not None:
        series.append(Series(name=f"Maj@{k}", x=(float(k),), y=(majority,), place=_PURPLE, is_line=False))
    return Lines(
        key="pass_at_k",
        title=f"{point.benchmark}{num}, {counted(point.k, 'sample')} each",
        x=Axis(title="number of samples k", scale="log2"),
        y=Axis(title="score, %", unit="share", low=-0.02, high=1.02),
        series=tuple(series),
    )


def _over_k(results: Mapping[str, object], label: str, by_k: str, place: int) -> list[Series]:
    """Return the curve of a score against k, and whiskers where intervals over problems are recorded.

    `by_k` is the score's key in the recorded results, such as `pass_at`.
    """
    found = []
    for k, value in mapping_at(results, by_k).items():
        share = as_finite(value)
        bounds = as_interval(setting(results, f"{by_k}_intervals.{k}.over_problems"))
        if share is not None and bounds is not None:
            found.append((int(k), share, bounds))
    curve = _curve(label, _numbers(results, f"curve.{by_k}_k"), place)
    return [curve, _whiskers(found, place)] if found else [curve]


def _curve(name: str, shares: Sequence[float], place: int) -> Series:
    x = tuple(map(float, range(1, len(shares) + 1)))
    return Series(name=name, x=x, y=tuple(shares), place=place, dash="solid")


def _whiskers(found: Sequence[tuple[int, float, tuple[float, float]]], place: int) -> Series:
    return Series(
        name="",
        x=tuple(float(k) for k, _, _ in found),
        y=tuple(share for _, share, _ in found),
        low=tuple(low for _, _, (low, _) in found),
        high=tuple(high for _, _, (_, high) in found),
        place=place,
        is_line=False,
        has_whiskers=True,
    )


def _numbers(results: Mapping[str, object], key: str) -> list[float]:
    """Return the list of numbers under a dotted key. The result is empty if there is none."""
    value = setting(results, key)
    if not isinstance(value, list | tuple):
        return []
    return [float(number) for number in value if isinstance(number, int | float)]
