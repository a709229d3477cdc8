"""Time the dashboard on a large folder: 200 runs of 10,000 steps and 40 metrics, 2 million rollout tokens.

    python benchmarks/dashboard_scale.py FOLDER [--runs 200] [--steps 10000] [--browser] [--keep-index]
    python benchmarks/dashboard_scale.py FOLDER --growth    (CPU seconds per route, see dashboard_growth.py)

makes the folder (once; about 3.5 GB), starts the dashboard over it without an index, and prints one JSON line
per measurement in seconds. Metrics are a few distinct courses, copied; reading them costs the same as if all
were distinct. `--browser` also opens every view in Chromium at 1366 x 768, again and again, and times it from
the request of the page until all figures on the screen are painted; the first opening, when the server has
answered none of its questions yet, is given by itself. `cpu_s_med` are CPU seconds of browser and server.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import psutil

import record
from atrium.base.metrics import CATALOGUE
from atrium.base.records import (
    Completion,
    EvaluatedSample,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    TokenTrace,
    Verdict,
    VerdictKind,
)
from atrium.config.compose import compose
from atrium.runs.sample_files import write_evaluation, write_rollouts
from dashboard_growth import measure_growth

NUM_METRICS, NUM_COURSES = 40, 8
NUM_PROBLEMS, NUM_SAMPLES = 128, 8
NUM_ROLLOUT_FILES, ROLLOUTS_PER_FILE, TOKENS_PER_ROLLOUT = 100, 40, 500
ARMS = (
    ("atr", "kl3", {"delta": 0.0231}),
    ("grpo", "ratio", {"delta": 0.2}),
    ("clip_higher", "asymmetric_ratio", {"epsilon_low": 0.2, "epsilon_high": 0.28}),
    ("reinforce", "none", {}),
)
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
"""Seconds from the request of a page until the figures on the screen are painted."""
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
"""Seconds between frames."""
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


def make_course(path, num_steps, seed):
    """A metrics file whose curves rise, fall and wander."""
    rng = np.random.default_rng(seed)
    names = [name for name in CATALOGUE if not name.startswith("evaluation/")][:NUM_METRICS]
    progress = np.linspace(0.0, 1.0, num_steps)
    columns = []
    for place, name in enumerate(names):
        if name == "rollout/num_tokens":
            columns.append(np.full(num_steps, 64_000.0))
            continue
        course = (1.0 - np.exp(-4.0 * progress)) * (0.3 + 0.02 * place) + 0.1 * rng.standard_normal()
        columns.append(course + 0.05 * rng.standard_normal(num_steps))
    rows = np.stack(columns, axis=1).tolist()
    with path.open("w", encoding="utf-8") as file:
        for step, row in enumerate(rows, start=1):
            record = {"step": step, "time": 1.7e9 + 3.0 * step, **dict(zip(names, row, strict=True))}
            record["time/step_s"] = 3.0
            file.write(json.dumps(record, separators=(",", ":")) + "\n")


def results(mean):
    span = [max(mean - 0.05, 0.0), min(mean + 0.05, 1.0)]
    return {
        "k": NUM_SAMPLES,
        "mean_at_k": mean,
        "pass_at_k": min(mean + 0.2, 1.0),
        "interval_over_problems": span,
        "interval_sampling": span,
        "num_problems": NUM_PROBLEMS,
    }


def make_run(folder, place, num_steps, course, config):
    algorithm, divergence, budget = ARMS[place % len(ARMS)]
    seed, started = place // len(ARMS), 1.7e9 + 60.0 * place
    folder.mkdir(parents=True)
    shutil.copy(course, folder / "metrics.jsonl")
    settings = json.loads(json.dumps(config))
    settings["seed"] = seed
    settings["algorithm"]["name"] = algorithm
    settings["divergence"] = {"kind": divergence, **budget}
    (folder / "config.json").write_text(json.dumps(settings))
    status = {"format_version": 1, "state": "finished", "step": num_steps, "num_steps": num_steps}
    status |= {"started": started, "updated": started + 3e4, "wall_s": 3e4, "host": "benchmark"}
    (folder / "status.json").write_text(json.dumps(status))
    rng = np.random.default_rng(place)
    ability = 0.3 + 0.05 * (place % len(ARMS)) + 0.03 * rng.standard_normal()
    steps = range(0, num_steps + 1, max(num_steps // 20, 1))
    points = {step: results(float(np.clip(ability * step / num_steps, 0.0, 1.0))) for step in steps}
    with (folder / "evaluations.jsonl").open("w") as file:
        for step, result in points.items():
            line = {"step": step, "time": started + step, "benchmark": "arithmetic-test", "results": result}
            file.write(json.dumps(line) + "\n")
    last = max(points)
    entry = {"step": last, **points[last]}
    scores = {"first": {"step": 0, **points[0]}, "best": entry, "last": entry}
    summary = {"evaluations": {"arithmetic-test": scores}, "num_tokens": 64_000 * num_steps}
    (folder / "summary.json").write_text(json.dumps(summary))
    problems = [
        Problem(problem_id=f"p{i}", question=f"{i}+1=", answer=str(i + 1)) for i in range(NUM_PROBLEMS)
    ]
    difficulty_P = np.random.default_rng(0).normal(0.0, 0.2, NUM_PROBLEMS)
    correct_PK = rng.random((NUM_PROBLEMS, NUM_SAMPLES)) < np.clip(ability + difficulty_P, 0, 1)[:, None]
    write_evaluation(
        folder / "evaluations" / "arithmetic-test" / f"step-{last:06d}.parquet",
        last,
        [
            sample(problem, index, correct_PK[p, index])
            for p, problem in enumerate(problems)
            for index in range(NUM_SAMPLES)
        ],
    )


def sample(problem, index, is_correct):
    return EvaluatedSample(
        problem=problem,
        sample_index=index,
        text=f"\\boxed{{{problem.answer if is_correct else 0}}}",
        verdict=VerdictKind.CORRECT if is_correct else VerdictKind.INCORRECT,
        reason="equal",
        extracted=problem.answer,
        is_correct=bool(is_correct),
        num_tokens=7,
        finish_reason=FinishReason.STOP,
        logprob_sum=-1.0,
    )


def make_rollouts(folder, num_steps):
    """Two million tokens in one run."""
    rng = np.random.default_rng(1)
    for file in range(1, NUM_ROLLOUT_FILES + 1):
        step = file * num_steps // NUM_ROLLOUT_FILES
        groups, traces = [], {}
        for problem_index in range(ROLLOUTS_PER_FILE // 8):
            problem = Problem(problem_id=f"train-{file}-{problem_index}", question="2+2=", answer="4")
            rollouts = []
            for index in range(8):
                rollouts.append(rollout(rng, index))
                traces[(problem.problem_id, index)] = trace(rng)
            groups.append(
                RolloutGroup(problem=problem, prompt_token_ids=np.arange(4), rollouts=tuple(rollouts))
            )
        write_rollouts(folder / "rollouts" / f"step-{step:06d}.parquet", step, groups, traces)


def rollout(rng, index):
    is_correct = bool(rng.random() < 0.5)
    return Rollout(
        sample_index=index,
        completion=Completion(
            token_ids=rng.integers(0, 28, TOKENS_PER_ROLLOUT).astype(np.int32),
            logprobs=-rng.random(TOKENS_PER_ROLLOUT).astype(np.float32),
            text="2+2=4;" * (TOKENS_PER_ROLLOUT // 6),
            finish_reason=FinishReason.STOP,
            weight_version=0,
        ),
        verdict=Verdict(
            kind=VerdictKind.CORRECT if is_correct else VerdictKind.INCORRECT, reason="equal", extracted="4"
        ),
        reward=float(is_correct),
    )


def trace(rng):
    ratio = np.exp(0.1 * rng.standard_normal(TOKENS_PER_ROLLOUT))
    advantage = rng.choice([-1.0, 1.0])
    return TokenTrace(
        advantage=np.full(TOKENS_PER_ROLLOUT, advantage),
        ratio=ratio,
        entropy=rng.random(TOKENS_PER_ROLLOUT),
        clipped=np.where((ratio > 1.23) & (advantage > 0), 1, 0),
    )


def make(runs_dir, num_runs, num_steps):
    """The whole folder, in a place that is complete or not there."""
    config = compose(["experiment=stress"]).model_dump(mode="json")
    courses = []
    for seed in range(NUM_COURSES):
        path = runs_dir / ".courses" / f"{seed}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        make_course(path, num_steps, seed)
        courses.append(path)
    for place in range(num_runs):
        algorithm = ARMS[place % len(ARMS)][0]
        clock = f"{place // 3600:02d}{place // 60 % 60:02d}{place % 60:02d}"
        name = f"20240101-{clock}-{algorithm}-s{place // len(ARMS)}-{place:04x}"
        make_run(runs_dir / "scale" / name, place, num_steps, courses[place % NUM_COURSES], config)
        if place == num_runs - 1:
            make_rollouts(runs_dir / "scale" / name, num_steps)
    shutil.rmtree(runs_dir / ".courses")
    (runs_dir / ".complete").touch()


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
    """Cold, then while the index fills, then warm."""
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
    """Every view, `repeats` times after a first one; then how evenly frames follow the mouse over curves."""
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
    """CPU seconds so far of the server, the browser and what drives it."""
    total = 0.0
    for process in {server, *psutil.Process().children(recursive=True)}:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--repeats", type=int, default=10, help="openings of each view, after a first one")
    parser.add_argument("--keep-index", action="store_true", help="do not fill the index anew")
    parser.add_argument(
        "--growth", action="store_true", help="CPU seconds of every route at 60 to 2,000 runs"
    )
    arguments = parser.parse_args()
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
