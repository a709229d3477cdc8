"""Routes that download reports and figures, with the same data as the pages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import Response

from atrium.compare.curves import Band, XAxis
from atrium.document.document import Figure
from atrium.runs.run_folder import RunFolder
from atrium.views.dashboard.curve_figure import curves_figure
from atrium.views.dashboard.curve_queries import METHODS, CurveRequest, curves_answer
from atrium.views.dashboard.sweep_queries import sweep_of
from atrium.views.dashboard.watcher import Watcher
from atrium.views.figures.style import FileKind
from atrium.views.files import rendered

if TYPE_CHECKING:
    from atrium.views.dashboard.compare_queries import ComparisonRequest

_TYPES = {"html": "text/html", "md": "text/markdown", "tex": "application/x-tex"}
Columns = Annotated[int, Query(ge=1, le=2)]
Names = Annotated[list[str], Query(max_length=2000)]


def asked_runs(
    request: Request,
    run: Names = [],  # noqa: B006 - FastAPI copies it
    exp: str | None = None,
) -> list[str]:
    """Return the names of the runs that a request asks for.

    These are the names in `run`. If there are none, they are the training runs of the experiment `exp` that
    are not archived, or such runs of all experiments if `exp` is `*`. If `exp` is None, there are none.
    """
    if run or exp is None:
        return run
    entries = sorted(
        request.app.state.watcher.scan.entries.values(), key=lambda entry: (entry.started, entry.name)
    )
    return [
        entry.name
        for entry in entries
        if exp in ("*", entry.experiment) and not (entry.is_evaluation or entry.annotations.is_archived)
    ]


AskedRuns = Annotated[list[str], Depends(asked_runs)]
"""The names of the requested runs, from a request's parameters."""


def _asked(
    run: AskedRuns,
    by: Names = [],  # noqa: B006
    base: str | None = None,
    at: str = "last",
    benchmark: Names = [],  # noqa: B006
    effect: Annotated[float, Query(gt=0.0, le=1.0)] = 0.02,
    picked: bool = False,
) -> ComparisonRequest:
    from atrium.views.dashboard.compare_queries import ComparisonRequest  # SciPy

    return ComparisonRequest(
        runs=tuple(run),
        by=tuple(by),
        baseline=base,
        at=at,
        benchmarks=tuple(benchmark),
        effect=effect,
        is_chosen=picked,
    )


def _asked_curves(
    run: AskedRuns,
    metric: Names = [],  # noqa: B006
    x: str = XAxis.STEP,
    group: str = METHODS,
    band: Band = Band.RANGE,
    smooth: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    points: Annotated[int, Query(ge=0, le=5_000)] = 400,
    zoom: Annotated[str | None, Query(pattern=r"^[0-9.e+]+_[0-9.e+]+$")] = None,
    picked: bool = False,
) -> CurveRequest:
    return CurveRequest(
        runs=tuple(run),
        metrics=tuple(metric),
        axis=x,
        group_by=group,
        band=band,
        smoothing=smooth,
        num_points=points,
        zoom=_range(zoom),
        is_chosen=picked,
    )


def _range(text: str | None) -> tuple[float, float] | None:
    """Return the ends of a range such as `10_200`, or None if the text is not a range."""
    try:
        low, high = map(float, (text or "").split("_"))
    except ValueError:
        return None
    return low, high


AskedCurves = Annotated[CurveRequest, Depends(_asked_curves)]
"""The `CurveRequest` in a request's parameters."""
AskedComparison = Annotated[Any, Depends(_asked)]
"""The `ComparisonRequest` in a request's parameters."""
SweepScore = Literal["mean_at_k", "pass_at_k"]


def add_exports(app: FastAPI, watcher: Watcher, said_of: Callable[[Sequence[RunFolder]], list[str]]) -> None:
    """Add the routes for downloads to `app`.

    `said_of` maps runs to additional lines of their report, such as verdicts on claims.
    """

    @app.get("/api/report")
    def report(asked: AskedComparison, suffix: Literal["html", "md", "tex"] = "html") -> Response:
        from atrium.compare.document import comparison_document, report_name
        from atrium.views.dashboard.compare_queries import compared_runs, training_of

        comparison = compared_runs(watcher, asked)
        document = comparison_document(
            comparison,
            training_of(watcher, asked),
            made=f"{time.strftime('%Y-%m-%d %H:%M')} · {len(asked.runs)} runs",
            claims=said_of([run for one in comparison.arms for run in one.arm.runs.values()]),
        )
        content = rendered(document, suffix)
        return attachment(content.encode(), f"{report_name(comparison)}.{suffix}", _TYPES[suffix])

    _add_curves(app, watcher)
    _add_comparisons(app, watcher)
    _add_regions(app, watcher)
    _add_sweeps(app, watcher)


def _add_curves(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/figure/curves")
    def curves(
        asked: AskedCurves,
        suffix: FileKind = "svg",
        columns: Columns = 1,
        log: bool = False,
        hide: Names = [],  # noqa: B006
        title: Annotated[str, Query(max_length=200)] = "",
        label: Names = [],  # noqa: B006
    ) -> Response:
        panels = [
            {**panel, "series": [one for one in panel["series"] if one["label"] not in hide]}
            for panel in curves_answer(watcher, asked)["panels"]
        ]
        labels = dict(zip(asked.metrics, label, strict=False))
        axis, band = str(asked.axis), str(asked.band)
        if asked.zoom:
            panels = [{**panel, "series": _within(panel["series"], *asked.zoom)} for panel in panels]
        figure = curves_figure(panels, axis=axis, band=band, is_log=log, title=title, labels=labels)
        return _drawn(figure, title or "-".join(asked.metrics), suffix, columns)


def _within(series: Sequence[dict[str, Any]], low: float, high: float) -> list[dict[str, Any]]:
    """Return the curves cut to the x-values from `low` to `high`.

    Curves without points in this range are not cut.
    """
    found = []
    for one in series:
        kept = [at for at, x in enumerate(one["x"]) if low <= x <= high]
        cut = {name: [value[at] for at in kept] for name, value in one.items() if isinstance(value, list)}
        found.append({**one, **cut} if kept else one)
    return found


def _add_comparisons(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/figure/comparison")
    def comparison(
        asked: AskedComparison,
        figure: str,
        suffix: FileKind = "svg",
        columns: Columns = 1,
        measure: Literal["mean", "pass"] = "mean",
    ) -> Response:
        from atrium.compare.document import report_name
        from atrium.views.dashboard.compare_queries import compared_runs, comparison_figure

        name = f"{figure}-{report_name(compared_runs(watcher, asked))}"
        return _drawn(comparison_figure(watcher, asked, figure, measure), name, suffix, columns)


def _add_regions(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/figure/trust-region")
    def region(
        run: AskedRuns,
        figure: str,
        is_arms: bool = False,
        step: int | None = None,
        picked: bool = False,
        suffix: FileKind = "svg",
        columns: Columns = 1,
    ) -> Response:
        from atrium.views.dashboard.compare_queries import figure_of
        from atrium.views.dashboard.run_view_queries import region_of_methods, region_of_run

        if is_arms:
            document = region_of_methods(watcher, run, is_chosen=picked)
        else:
            _, document = region_of_run(watcher, run[0] if run else "", step)
        return _drawn(figure_of(document, figure), f"trust-region-{figure}", suffix, columns)


def _add_sweeps(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/figure/sweep")
    def sweep(
        name: str,
        figure: str,
        stage: str = "",
        key: str = "",
        score: SweepScore = "mean_at_k",
        suffix: FileKind = "svg",
        columns: Columns = 1,
    ) -> Response:
        from atrium.views.dashboard.compare_queries import figure_of

        document, _ = sweep_of(watcher, name, stage=stage, key=key, score=score)
        return _drawn(figure_of(document, figure), f"{name}-{figure}", suffix, columns)


def _drawn(figure: Figure, name: str, kind: FileKind, columns: int) -> Response:
    """Return a response that downloads the figure, sized to one or two columns of a paper."""
    from atrium.views.figures.sheet import COLUMN_INCHES, MEDIA_TYPES, file

    content = file([figure], kind, inches=COLUMN_INCHES[columns])
    plain = re.sub(r"[^A-Za-z0-9._=-]+", "-", name).strip("-.")[:80] or "figure"
    return attachment(content, f"{plain}.{kind}", MEDIA_TYPES[kind])


def attachment(content: bytes, name: str, media_type: str) -> Response:
    """Return a response that downloads `content` as a file.

    `name` must consist of letters, digits and `._=-`.
    """
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(content, media_type=media_type, headers=headers)
