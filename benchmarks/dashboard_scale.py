"""Time the dashboard on a large folder: 200 runs of 10,000 steps and 40 metrics, 2 million rollout tokens.

    python benchmarks/dashboard_scale.py FOLDER [--runs 200] [--steps 10000] [--browser] [--keep-index]
    python benchmarks/dashboard_scale.py FOLDER --growth    (CPU seconds per route, see dashboard_growth.py)

creates the folder on first use (about 3.5 GB), starts the dashboard on it without an index, and prints one
JSON line per measurement, in seconds. The metrics files are copies of a few distinct ones, which take as long
to read as distinct files. `--browser` also opens every view repeatedly in Chromium at 1366 x 768 and measures
the time from the page request until all figures on the screen are painted. The first opening of a view, for
which the server has nothing cached, is reported separately. `cpu_s_med` is the median of the CPU seconds of
browser and server.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

import record
from dashboard_growth import measure_growth
from dashboard_runs import make

DRAWN = """async (view) => {
  const frame = () => new Promise(requestAnimationFrame);
  const isDrawn = () => {
    if (document.querySelector("main")?.dataset.ready !== view) return false;
    const onScreen = [...document.querySelectorAll("section.figure[data-drawn] .plot")].filter((plot) => {
      const { top, bottom } = plot.getBoundingClientRect();
      return bottom > 0 && top < innerHeight;
    });
    return onScreen.every((plot) => plot.querySelector("canvas"));
  };
  while (!isDrawn()) await frame();
  await frame();
  await new Promise((resolve) => setTimeout(resolve, 0));
  return performance.now() / 1000;
}"""
"""JavaScript that returns the seconds from the page request until all figures on the screen are painted."""
FRAMES = """async (seconds) => {
  const gaps = [];
  const end = performance.now() + 1000 * seconds;
  let last = performance.now();
  while (last < end) {
    await new Promise(requestAnimationFrame);
    gaps.push((performance.now() - last) / 1000);
    last = performance.now();
  }
  return gaps;
}"""
"""JavaScript that returns the seconds between consecutive frames."""
VIEWS = (
    "overview",
    "runs",
    "curves",
    "compare",
    "trust-region",
    "trust-region?mode=arms",
    "rollouts",
    "sweeps",
    "evaluations",
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def report(what, seconds, **more):
    record.print_record(what=what, s=round(seconds, 3), **more, **record.machine())


def ask(client, what, path, **parameters):
    began = time.perf_counter()
    response = client.get(path, params=parameters)
    seconds = time.perf_counter() - began
    response.raise_for_status()
    report(what, seconds, kB=round(len(response.content) / 1000))
    return response.json()


def measure(client, num_runs):
    """Time requests with an empty index, while the index fills, and with a full index."""
    table = ask(client, "table of runs, first request", "/api/runs")
    names, version = [run["name"] for run in table["runs"]], table["version"]
    assert len(names) == num_runs
    began, slowest = time.perf_counter(), 0.0
    while True:
        asked = time.perf_counter()
        state = client.get("/api/runs").json()["index"]
        slowest = max(slowest, time.perf_counter() - asked)
        if state["done"] == state["total"]:
            break
        time.sleep(0.5)
    report("index filled", time.perf_counter() - began, slowest_table_meanwhile=round(slowest, 3))
    panels = ["rollout/reward", "objective/entropy", "rollout/completion_length", "objective/kl_k3"]
    for again in ("first", "again"):
        ask(client, f"table of runs, {again}", "/api/runs")
        ask(client, f"update without changes, {again}", "/api/runs", since=version)
        for num in (1, 5, 60):
            chosen = names[:num]
            shown = {"run": chosen, "metric": panels, "points": 200 if num > 30 else 500}
            ask(client, f"4 curves of {num} runs by method, {again}", "/api/curves", **shown)
            ask(client, f"4 curves of {num} runs, each, {again}", "/api/curves", group="run", **shown)
        ask(
            client,
            f"4 curves of 60 runs by tokens, smoothed, {again}",
            "/api/curves",
            **shown,
            x="tokens",
            smooth=101,
        )
        ask(client, f"comparison of 60 runs, {again}", "/api/compare", run=names[:60])
        ask(client, f"trust region, 2M tokens, {again}", "/api/trust-region", run=names[0])
        ask(client, f"all rollouts of a run, {again}", "/api/samples", run=names[0], step=-1)


def measure_browser(address, server, repeats):
    """Time `repeats` openings of each view after a first one, then the frames while the mouse moves."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"] if sys.platform == "linux" else []
        )
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        for view in VIEWS:
            seconds, cpu_seconds = [], []
            for _ in range(repeats + 1):
                before = cpu_s(server)
                page.goto(f"{address}/{view}", wait_until="commit")
                seconds.append(page.evaluate(DRAWN, view.partition("?")[0]))
                cpu_seconds.append(cpu_s(server) - before)
            report(
                f"view {view} in the browser",
                statistics.median(seconds[1:]),
                worst=round(max(seconds[1:]), 3),
                first=round(seconds[0], 3),
                cpu_s_med=round(statistics.median(cpu_seconds[1:]), 3),
                repeats=repeats,
            )
        page.goto(f"{address}/curves", wait_until="commit")
        page.evaluate(DRAWN, "curves")
        box = page.locator(".plot").first.bounding_box()
        page.evaluate(f"window.gaps = ({FRAMES})(4)", None)
        for place in range(60):
            page.mouse.move(box["x"] + (place + 0.5) * box["width"] / 60, box["y"] + box["height"] / 2)
            page.wait_for_timeout(20)
        gaps = sorted(page.evaluate("window.gaps"))
        report(
            "frame while the mouse moves over linked curves",
            statistics.median(gaps),
            p95=round(gaps[int(0.95 * len(gaps))], 3),
            worst=round(gaps[-1], 3),
        )
        browser.close()


def cpu_s(server):
    """Return the CPU seconds used so far by the server, the browser and its driver."""
    total = 0.0
    for process in {server, *psutil.Process().children(recursive=True)}:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def options():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument(
        "--repeats", type=int, default=10, help="number of times to open each view, after a first one"
    )
    parser.add_argument(
        "--keep-index", action="store_true", help="keep the existing index instead of rebuilding it"
    )
    parser.add_argument(
        "--growth", action="store_true", help="measure CPU seconds of every route at 60 to 2,000 runs"
    )
    return parser.parse_args()


def main():
    arguments = options()
    if arguments.growth:
        return 0 if measure_growth(arguments.folder, make) else 1
    if not (arguments.folder / ".complete").exists():
        began = time.perf_counter()
        make(arguments.folder, arguments.runs, arguments.steps)
        report("folder made", time.perf_counter() - began)
    if not arguments.keep_index:
        shutil.rmtree(arguments.folder / ".cache", ignore_errors=True)
    port = free_port()
    command = [sys.executable, "-m", "atrium", "dashboard", "--runs-dir", str(arguments.folder)]
    began = time.perf_counter()
    server = subprocess.Popen([*command, "--port", str(port), "--no-browser"])
    try:
        address = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=address, timeout=300.0) as client:
            while True:
                try:
                    client.get("/")
                    break
                except httpx.ConnectError:
                    time.sleep(0.02)
            report("process started, runs scanned, first page", time.perf_counter() - began)
            measure(client, arguments.runs)
        if arguments.browser:
            measure_browser(address, psutil.Process(server.pid), arguments.repeats)
    finally:
        server.terminate()
        server.wait(timeout=30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
