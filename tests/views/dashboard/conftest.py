"""A small runs directory, written by what training writes with, and a server over it."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import uvicorn
from tests.chromium import chromium
from tests.run_records import (
    evaluated_sample,
    group_of_two,
    leave,
    method_settings,
    sum_problem,
    write_run,
)

from atrium.base.records import BenchmarkResult, RatioHistogram, TokenTrace
from atrium.document.document import Axis, Document, Grid, Section, Sentence
from atrium.runs.layout import steps_in
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState
from atrium.views.dashboard.server import create_app

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\\boxed{1}"
DIVERGENCES = {
    "atr": {"kind": "kl3", "delta": 0.0231},
    "grpo": {"kind": "ratio", "delta": 0.2},
    "clip": {"kind": "window", "lower": 0.8, "upper": 1.2},
    "mine": {"kind": "of_a_plugin", "delta": 0.1},
}
NUM_PROBLEMS, NUM_SAMPLES, NUM_TOKENS = 12, 4, 6


def evaluated(rng, ability, text):
    is_correct_PK = rng.random((NUM_PROBLEMS, NUM_SAMPLES)) < ability
    samples = [
        evaluated_sample(
            sum_problem(index, f"test-{index}"),
            place,
            is_correct=is_correct_PK[index, place],
            text=text,
            num_tokens=NUM_TOKENS,
        )
        for index in range(NUM_PROBLEMS)
        for place in range(NUM_SAMPLES)
    ]
    mean = float(is_correct_PK.mean())
    results = {
        "k": NUM_SAMPLES,
        "mean_at_k": mean,
        "pass_at_k": float(is_correct_PK.any(axis=1).mean()),
        "interval_over_problems": [max(mean - 0.1, 0.0), min(mean + 0.1, 1.0)],
        "interval_sampling": None,
        "num_problems": NUM_PROBLEMS,
    }
    return samples, results


TRACES = [
    TokenTrace(
        advantage=(1.0,) * NUM_TOKENS,
        ratio=(1.0, 1.1, 1.5, 0.9, 1.0, 1.0),
        entropy=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        clipped=(0, 0, 1, 0, 0, 0),
    ),
    TokenTrace(
        advantage=(-1.0,) * NUM_TOKENS,
        ratio=(1.0, 0.5, 1.0, 1.0, 1.0, 1.0),
        entropy=(0.1,) * NUM_TOKENS,
        clipped=(0, -1, 0, 0, 0, 0),
    ),
]


def written_run(
    runs_dir,
    algorithm="atr",
    seed=0,
    *,
    experiment="study",
    num_steps=8,
    ability=0.5,
    text=HOSTILE,
    state=None,
    until=None,
    benchmark="sums",
    rewards=(),
):
    """One run with metrics at every step, rollouts at 1 and every 4, evaluations at both ends.

    It stops after step `until` where that is given.
    """
    rng = np.random.default_rng([seed, len(algorithm)])
    folder = RunFolder.create(runs_dir, experiment, algorithm, seed)
    folder.write_config(
        {
            "seed": seed,
            "num_steps": num_steps,
            "experiment_name": experiment,
            **method_settings(algorithm, DIVERGENCES[algorithm]),
            "model": {"kind": "tiny"},
        }
    )
    folder.write_overrides([f"algorithm={algorithm}"])

    def rollouts(step):
        groups = [
            group_of_two(sum_problem(index, f"train-{index}"), rng, num_tokens=NUM_TOKENS, text=text)
            for index in range(3)
        ]
        return groups, TRACES * len(groups)

    def evaluations(step):
        if step in (0, num_steps):
            samples, results = evaluated(rng, ability if step else 0.2, text)
            results["draws"] = {"evaluation_seed": 0, "run_seed": seed if step else None}
            yield BenchmarkResult(step=step, benchmark=benchmark, samples=samples, results=results)

    writer = write_run(
        folder,
        num_steps=num_steps,
        last=until,
        metrics=lambda step: metrics_of(rng, step) | {f"rollout/reward/{name}": 0.5 for name in rewards},
        evaluations=evaluations,
        rollouts=rollouts,
        rollouts_every_num_steps=4,
        ratios=lambda step: RATIOS,
    )
    leave(writer, state or RunState.FINISHED)
    return folder


RATIOS = RatioHistogram(edges=(0.5, 0.9, 1.1, 1.6), positive=(1, 6, 3), negative=(4, 5, 0), zero=(0, 9, 0))


def metrics_of(rng, step):
    return {
        "rollout/reward": step / 10 + 0.01 * rng.random(),
        "rollout/num_tokens": 100.0,
        "objective/entropy": 1.0 / step,
        "optimizer/num_trained_tokens": 28.0,
        "objective/clip_high_frac": 0.02,
        "objective/clip_low_frac": 0.01,
        "objective/ratio_min": 0.5,
        "objective/ratio_max": 1.5,
        "objective/kl_k3": 0.001 * step,
        "time/step_s": 2.0,
    }


@pytest.fixture(scope="session")
def written_once(tmp_path_factory):
    """Two methods with two seeds each."""
    folder = tmp_path_factory.mktemp("dashboard") / "runs"
    for seed in (0, 1):
        written_run(folder, "atr", seed, ability=0.6)
        written_run(folder, "grpo", seed, ability=0.4)
    return folder


@pytest.fixture
def runs_dir(tmp_path, written_once):
    """A copy of it that a test may change."""
    return shutil.copytree(written_once, tmp_path / "runs")


def write_sweep(runs_dir, name="delta"):
    """A sweep with complete, pruned, failed and waiting trials."""
    folder = runs_dir / "sweeps" / name
    (folder / "report").mkdir(parents=True)

    def trial(number, state, delta, value, reason=None):
        seeds = [
            {
                "seed": seed,
                "state": "finished",
                "run": None,
                "mean_at_k": value + 0.02 * seed,
                "pass_at_k": value + 0.2,
            }
            | {"curve": [[0, 0.2, 0.3], [8, value, value + 0.2]], "metrics": {"objective/entropy": 0.3}}
            for seed in (0, 1)
        ]
        return {
            "stage": "search",
            "number": number,
            "state": state,
            "labels": [f"delta={delta}"],
            "settings": {"divergence.delta": delta, "optimizer.learning_rate": 10.0 ** -(3 + number % 3)},
            "window": [1 - delta, 1 + delta],
            "values": [value] if state == "complete" else None,
            "reason": reason,
            "num_takeovers": 0,
            "seeds": seeds if state != "waiting" else [],
        }

    trials = [trial(i, "complete", round(0.01 * 2**i, 3), 0.3 + 0.05 * i - 0.012 * i * i) for i in range(6)]
    trials += [
        trial(6, "pruned", 0.5, 0.22, "worse than half of the others at step 8"),
        trial(7, "failed", 0.9, 0.1, "the loss is not finite"),
        trial(8, "waiting", 0.07, 0.0),
    ]
    state = {
        "format_version": 1,
        "name": name,
        "question": "Which budget learns best?",
        "state": "running",
        "updated": time.time(),
        "objectives": [{"metric": "mean_at_k", "direction": "maximize"}],
        "stages": [{"name": "search", "num_trials": 9, "num_ended": 8}],
        "workers": [{"id": "a"}],
        "trials": trials,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "sweep.json").write_text(json.dumps({"definition": {"sampler": {"kind": "tpe"}}}))
    report = {
        "contrasts": {
            "outcomes": {"reward": "mean rollout/reward over steps 1 to 8"},
            "columns": ["contrast", "predicted", "observed", "result"],
            "rows": [
                {"outcome": "reward", "cells": ["wide - clip", "+0.1", "+0.12 [+0.1, +0.14]", "as predicted"]}
            ],
        },
        "sentences": ["So far."],
    }
    (folder / "report" / "report.json").write_text(json.dumps(report))
    return folder


def atlas_of(folder):
    """A small atlas, on the rollouts of a run or on random ones."""
    grid = Grid(key="distances", title="Angles", x=Axis(), rows=("a", "b"), values=((0.0, 1.0), (1.0, 0.0)))
    rollouts = f"{len(steps_in(folder.rollouts_dir))} steps of {folder.name}" if folder else "random rollouts"
    answer = Sentence(f"2 distinct methods on {rollouts}.")
    section = Section(title="Classes", figures=(grid,))
    return Document(key="atlas", title="Classes of methods", answer=(answer,), sections=(section,))


@contextmanager
def served(runs_dir):
    """The dashboard in a thread of this process; gives its address."""
    app = create_app(
        runs_dir,
        interval_s=0.2,
        said_of=lambda runs: [f"{len(runs)} runs are held to a claim"],
        atlas_of=atlas_of,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    app.state.is_closing = lambda: server.should_exit
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive()


@pytest.fixture
def address(runs_dir):
    with served(runs_dir) as found:
        yield found


@pytest.fixture(scope="module")  # Playwright runs once at a time in a process, and other tests use it, too
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser, address):
    """A page that fails its test where the console says anything, or anything is asked of another server."""
    context = browser.new_context(viewport={"width": 1366, "height": 768}, base_url=address)
    opened = context.new_page()
    complaints = []
    opened.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address, "data:", "blob:"))
            else complaints.append(f"asked {request.url}")
        ),
    )
    yield opened
    context.close()
    assert complaints == []


@pytest.fixture
def make_run(tmp_path_factory):
    """A run that appears whole, so that nothing which watches the folder sees half of it."""

    def make(runs_dir, algorithm="atr", seed=0, **settings):
        folder = written_run(tmp_path_factory.mktemp("unseen"), algorithm, seed, **settings)
        place = runs_dir / folder.path.relative_to(folder.path.parents[1])
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.path.rename(place)
        return RunFolder(place)

    return make


@pytest.fixture
def make_sweep():
    return write_sweep


@pytest.fixture
def serving():
    return served


@pytest.fixture
def hostile():
    return HOSTILE
