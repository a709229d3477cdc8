"""The dashboard's web application: its page, and routes for the queries.

The application reads only `runs/` and writes only annotations and caches. All resources of a page come from
this server.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware

from atrium.base.errors import AtriumError, reason_of
from atrium.base.plain_files import cached_while_unchanged
from atrium.document.document import Document
from atrium.document.json import to_json
from atrium.runs.run_folder import RunFolder
from atrium.views.dashboard.annotations import annotate
from atrium.views.dashboard.curve_queries import curves_answer, quantities_answer
from atrium.views.dashboard.export_routes import (
    AskedComparison,
    AskedCurves,
    AskedRuns,
    SweepScore,
    add_exports,
)
from atrium.views.dashboard.guard import Guard, host_names
from atrium.views.dashboard.run_queries import differences_answer, lasts_answer, run_answer, state_answer
from atrium.views.dashboard.runs_table import RunsTable
from atrium.views.dashboard.samples import TRAINING, Filter
from atrium.views.dashboard.sweep_queries import sweep_answer, sweeps_answer
from atrium.views.dashboard.watcher import Watcher

STATIC = Path(__file__).with_name("static")
VIEWS = (
    "overview",
    "runs",
    "curves",
    "compare",
    "trust-region",
    "rollouts",
    "sweeps",
    "evaluations",
    "atlas",
)
_TOKEN_PLACE, _VERSION_PLACE = "{{token}}", "{{version}}"
_VIEWS_PLACE, _DRAWING_PLACE = "{{views}}", "{{drawing}}"
_DRAWING = "".join(
    f'<link rel="modulepreload" href="/static/{name}">'
    for name in ("export.js", "figure.js", "vendor/echarts/echarts.esm.min.js")
)
_WITHOUT_FIGURES = ("runs", "rollouts", "evaluations")
"""Views without figures, for which the charting library is not preloaded."""
_MAX_BODY_BYTES = 100_000
_LEAST_COMPRESSED_BYTES = 1000
_EVENT_INTERVAL_S = 0.25
_HEARTBEAT_S = 15.0

Names = Annotated[list[str], Query(max_length=2000)]


def create_app(
    runs_dir: Path,
    *,
    host: str = "127.0.0.1",
    more_hosts: Collection[str] = (),
    interval_s: float = 1.0,
    said_of: Callable[[Sequence[RunFolder]], list[str]] = lambda _runs: [],
    atlas_of: Callable[[RunFolder | None], Document] = lambda _run: Document(key="atlas", title="Atlas"),
) -> FastAPI:
    """Create the dashboard application for a runs directory, which it scans every `interval_s` seconds.

    The Host header of a request must be `host`, one of `more_hosts`, or a loopback name. `said_of` maps runs
    to additional lines of their report, such as verdicts on claims. `atlas_of` returns the atlas of gradients
    on a run's rollouts, or on random rollouts if its argument is None.
    """
    watcher = Watcher(runs_dir, interval_s=interval_s)
    token = secrets.token_urlsafe(24)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(watcher.start)
        threading.Thread(target=_warm, args=(watcher,), daemon=True).start()
        yield
        await run_in_threadpool(watcher.stop)

    app = FastAPI(title="Atrium", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.watcher, app.state.token = watcher, token
    # `serve` replaces this function: open event streams must end before the server can stop.
    app.state.is_closing = lambda: False
    # The middleware does not compress event streams, since this would delay events.
    app.add_middleware(GZipMiddleware, minimum_size=_LEAST_COMPRESSED_BYTES, compresslevel=5)
    app.add_middleware(Guard, host_names=host_names(host, more_hosts), token=token)
    app.add_exception_handler(AtriumError, _explained)
    _add_pages(app, watcher, token)
    _add_queries(app, watcher)
    _add_comparison(app, watcher)
    add_exports(app, watcher, said_of)
    _add_run_views(app, watcher)
    _add_atlas(app, watcher, atlas_of)
    _add_sweeps(app, watcher)
    _add_writing(app, watcher)
    _add_events(app, watcher)
    return app


def _warm(watcher: Watcher) -> None:
    """Load SciPy and compare the methods of the default experiment, so that the first page loads sooner."""
    from atrium.views.dashboard.overview_queries import overview_answer

    with suppress(Exception):  # the page reports errors itself, and the server may have stopped
        overview_answer(watcher, None, None)


def _add_pages(app: FastAPI, watcher: Watcher, token: str) -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    page = page.replace(_TOKEN_PLACE, token).replace(_VIEWS_PLACE, " ".join(VIEWS))

    @app.get("/")
    @app.get("/{view}")
    async def show(view: str = VIEWS[0]) -> Response:
        if view not in VIEWS:
            return JSONResponse({"error": f"unknown page {view[:80]!r}"}, status_code=404)
        drawing = "" if view in _WITHOUT_FIGURES else _DRAWING
        shown = page.replace(_DRAWING_PLACE, drawing).replace(_VERSION_PLACE, str(watcher.version))
        return HTMLResponse(shown, headers={"Cache-Control": "no-store"})

    app.mount("/static", _Fresh(directory=STATIC), name="static")


class _Fresh(StaticFiles):
    """Static files that browsers cache but revalidate on each use."""

    def file_response(self, *arguments: Any, **settings: Any) -> Response:  # noqa: ANN401 - as its base
        """Return the file with a header that requires revalidation."""
        response = super().file_response(*arguments, **settings)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _add_queries(app: FastAPI, watcher: Watcher) -> None:
    table = RunsTable(watcher)

    @app.get("/api/runs")
    def runs(since: int | None = None) -> Response:
        return _json(table.answer(since))

    @app.get("/api/overview")
    def overview(
        experiment: str | None = None,
        base: str | None = None,
        opened: Names = [],  # noqa: B006 - FastAPI copies it
    ) -> Response:
        from atrium.views.dashboard.overview_queries import overview_answer

        return _json(overview_answer(watcher, experiment, base, opened))

    @app.get("/api/lasts")
    def lasts(metric: Names = [], since: int = -1) -> Response:  # noqa: B006 - FastAPI copies it
        return _json(lasts_answer(watcher, metric, since))

    @app.get("/api/run")
    def run(name: str) -> Response:
        return _json(run_answer(watcher, name))

    @app.get("/api/differences")
    def differences(run: Annotated[list[str], Query(min_length=2, max_length=20)]) -> Response:
        return _json(differences_answer(watcher, run))

    @app.get("/api/quantities")
    def quantities(run: AskedRuns) -> Response:
        return _json(quantities_answer(watcher, run))

    @app.get("/api/curves")
    def curves(asked: AskedCurves) -> Response:
        return _json(curves_answer(watcher, asked))


def _add_comparison(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/compare")
    def compare(
        asked: AskedComparison, measure: Literal["mean", "pass"] = "mean", candidate: str | None = None
    ) -> Response:
        from atrium.views.dashboard.compare_queries import compare_answer

        try:
            return _json(compare_answer(watcher, asked, measure, candidate))
        except AtriumError as error:  # expected, such as for a single run or before the first evaluation
            return _json({"reason": reason_of(error)})


def _add_run_views(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/trust-region")
    def trust_region(run: str, step: int | None = None) -> Response:
        from atrium.views.dashboard.run_view_queries import trust_region_answer

        return _json(trust_region_answer(watcher, run, step))

    @app.get("/api/trust-region/arms")
    def arms(run: AskedRuns, picked: bool = False) -> Response:
        from atrium.views.dashboard.run_view_queries import region_of_methods

        return _json(to_json(region_of_methods(watcher, run, is_chosen=picked)))

    @app.get("/api/samples")
    def samples(
        run: str,
        source: str = TRAINING,
        step: int | None = None,
        verdict: str = "",
        problem: str = "",
        text: str = "",
        min_tokens: int = 0,
        max_tokens: int | None = None,
    ) -> Response:
        from atrium.views.dashboard.run_view_queries import samples_answer

        wanted = Filter(
            verdict=verdict, problem_id=problem, text=text, min_tokens=min_tokens, max_tokens=max_tokens
        )
        return _json(samples_answer(watcher, run, source, step, wanted))

    @app.get("/api/sample")
    def sample(run: str, source: str, step: int, problem: str, index: int) -> Response:
        from atrium.views.dashboard.run_view_queries import sample_answer

        return _json(sample_answer(watcher, run, source, step, problem, index))


def _add_atlas(app: FastAPI, watcher: Watcher, atlas_of: Callable[[RunFolder | None], Document]) -> None:
    made = cached_while_unchanged(8)(lambda _rollouts, folder: atlas_of(folder))

    @app.get("/api/atlas")
    def atlas(run: str = "") -> Response:
        folder = watcher.scan.entry(run).folder if run else None
        # The atlas of random rollouts never changes, like the folder of static files.
        return _json(to_json(made(folder.rollouts_dir if folder else STATIC, folder)))


def _add_sweeps(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/sweeps")
    def sweeps() -> Response:
        return _json(sweeps_answer(watcher))

    @app.get("/api/sweep")
    def sweep(name: str, stage: str = "", key: str = "", score: SweepScore = "mean_at_k") -> Response:
        return _json(sweep_answer(watcher, name, stage=stage, key=key, score=score))


def _add_writing(app: FastAPI, watcher: Watcher) -> None:
    @app.patch("/api/run")
    async def write(request: Request, name: str) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY_BYTES:
                return JSONResponse({"error": "the request is longer than 100,000 bytes"}, status_code=413)
        entry = watcher.scan.entry(name)
        try:
            changes = json.loads(body)
        except (ValueError, RecursionError):
            return JSONResponse({"error": "the request must be valid JSON"}, status_code=400)
        after = await run_in_threadpool(annotate, entry.folder.path, changes)
        return _json({"note": after.note, "tags": after.tags, "is_archived": after.is_archived})


def _add_events(app: FastAPI, watcher: Watcher) -> None:
    @app.get("/api/events")
    async def events(request: Request) -> StreamingResponse:
        stream = _events(lambda: state_answer(watcher), request)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )


async def _events(state: Callable[[], dict[str, Any]], request: Request) -> AsyncIterator[str]:
    """Yield a server-sent event whenever the state changes, until the page or the server closes."""
    sent: dict[str, Any] | None = None
    waited_s = 0.0
    while not request.app.state.is_closing() and not await request.is_disconnected():
        now = state()
        if now != sent:
            yield f"data: {json.dumps(now)}\n\n"
            sent, waited_s = now, 0.0
        elif waited_s >= _HEARTBEAT_S:
            yield ": still here\n\n"
            waited_s = 0.0
        await asyncio.sleep(_EVENT_INTERVAL_S)
        waited_s += _EVENT_INTERVAL_S


async def _explained(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": reason_of(error)}, status_code=400)


def _json(answer: object) -> Response:
    return Response(encoded(answer), media_type="application/json")


def encoded(answer: object) -> str:
    """Return the answer as standard JSON, with null for non-finite numbers."""
    try:
        return json.dumps(answer, allow_nan=False)
    except ValueError:
        return json.dumps(plain(answer), allow_nan=False)


def plain(value: Any) -> Any:  # noqa: ANN401 - any value of a file
    """Return the value with non-finite numbers replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
