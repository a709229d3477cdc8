"""Measure the CPU seconds of every dashboard route at 60, 300 and 2,000 runs of one experiment.

    python benchmarks/dashboard_scale.py FOLDER --growth

creates the folders on first use (about 150 MB), requests every route within this process, and prints one
JSON line per route. `ratio` is the CPU time at 2,000 runs divided by the CPU time at 300 runs. The command
exits with 1 if a ratio is greater than 10, which means that the route's cost grows faster than linearly.
"""

from __future__ import annotations

import time

from starlette.testclient import TestClient

import record
from atrium.views.dashboard.server import create_app

SIZES = (60, 300, 2000)
NUM_STEPS = 20
MOST_RATIO = 10.0
LEAST_S = 0.02
"""CPU seconds below which differences are noise of the clock and the interpreter's caches."""
_CURVES = ["rollout/reward", "objective/entropy"]


def requests(names):
    """Return every route that reads runs, with its parameters; `names` are the names of all runs."""
    one, every = {"run": names[0]}, {"exp": "scale"}
    return {
        "runs": {},
        "overview": {},
        "lasts": {"metric": _CURVES},
        "run": {"name": names[0]},
        "quantities": every,
        "curves": {**every, "metric": _CURVES, "points": 200},
        "compare": every,
        "trust-region": one,
        "trust-region/arms": every,
        "samples": one,
        "sweeps": {},
        "report": every,
    }


def cpu_seconds(runs_dir):
    """Return each route's CPU seconds for one folder, and the uncompressed size of its response in kB."""
    app = create_app(runs_dir, interval_s=3600.0)
    found = {}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        watcher = app.state.watcher
        deadline = time.monotonic() + 600.0
        while watcher.progress.num_done < watcher.progress.num_runs:
            assert time.monotonic() < deadline, "the index is not filled"
            time.sleep(0.1)
        names = [run["name"] for run in client.get("/api/runs").json()["runs"]]
        watcher.version += 1  # otherwise the cached table would be returned
        for route, parameters in requests(names).items():
            before = time.process_time()
            response = client.get(f"/api/{route}", params=parameters)
            found[route] = (time.process_time() - before, len(response.content) / 1000)
            assert response.status_code == 200, f"{route}: {response.text[:200]}"
    return found


def measure_growth(folder, make):
    """Print a line per route, and return whether the cost of every route grows at most linearly.

    `make(runs_dir, num_runs, num_steps)` creates a folder of runs.
    """
    found = {}
    for num_runs in SIZES:
        runs_dir = folder / str(num_runs)
        if not (runs_dir / ".complete").exists():
            make(runs_dir, num_runs, NUM_STEPS)
        found[num_runs] = cpu_seconds(runs_dir)
    is_linear = True
    for route in found[SIZES[0]]:
        seconds = [found[num_runs][route][0] for num_runs in SIZES]
        ratio = max(seconds[-1], LEAST_S) / max(seconds[-2], LEAST_S)
        is_linear &= ratio <= MOST_RATIO
        record.print_record(
            what=f"CPU seconds of /api/{route}",
            **{f"runs_{num_runs}": round(value, 3) for num_runs, value in zip(SIZES, seconds, strict=True)},
            ratio=round(ratio, 2),
            kB=round(found[SIZES[-1]][route][1]),
            **record.machine(),
        )
    return is_linear
