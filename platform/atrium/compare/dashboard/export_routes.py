"""Files to send and to print: the report on a comparison, made from the same query as its view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query
from fastapi.responses import Response

from atrium.compare.dashboard.watcher import Watcher

if TYPE_CHECKING:
    from atrium.compare.dashboard.compare_queries import ComparisonRequest

_TYPES = {"html": "text/html", "md": "text/markdown", "tex": "application/x-tex"}
Names = Annotated[list[str], Query(max_length=2000)]


def _asked(
    run: Names = [],  # noqa: B006 - FastAPI copies it
    by: Names = [],  # noqa: B006
    base: str | None = None,
    at: str = "last",
    benchmark: Names = [],  # noqa: B006
    effect: Annotated[float, Query(gt=0.0, le=1.0)] = 0.02,
) -> ComparisonRequest:
    from atrium.compare.dashboard.compare_queries import ComparisonRequest  # SciPy

    return ComparisonRequest(
        runs=tuple(run), by=tuple(by), baseline=base, at=at, benchmarks=tuple(benchmark), effect=effect
    )


AskedComparison = Annotated[Any, Depends(_asked)]
"""The comparison that a query asks for."""


def add_exports(app: FastAPI, watcher: Watcher) -> None:
    """Add the routes of files."""

    @app.get("/api/report")
    def report(asked: AskedComparison, suffix: Literal["html", "md", "tex"] = "html") -> Response:
        from atrium.compare.dashboard.compare_queries import compared_runs
        from atrium.compare.report_files import report_files, report_name

        comparison, _ = compared_runs(watcher, asked)
        made = f"{time.strftime('%Y-%m-%d %H:%M')} · {len(asked.runs)} runs"
        content = report_files(comparison, made=made)[suffix]
        return attachment(content.encode(), f"{report_name(comparison)}.{suffix}", _TYPES[suffix])


def attachment(content: bytes, name: str, media_type: str) -> Response:
    """A file that the browser saves; `name` is of letters, digits and `._=-`."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(content, media_type=media_type, headers=headers)
