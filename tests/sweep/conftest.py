"""Sweeps of runs that cost nothing: a scripted executor answers in the place of training."""

from __future__ import annotations

import math
import threading

import pytest

from atrium.base.errors import Pruned
from atrium.base.records import BenchmarkResult
from atrium.config.messages import validate
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.pruning import RunWatch
from atrium.sweep.results import FINISHED, PRUNED, SeedResult
from atrium.sweep.setup import prepare
from atrium.sweep.storage import SweepStorage, storage_url
from atrium.sweep.worker import SweepWorker

NUM_PROBLEMS = 24


class ScriptedRuns:
    """Executes by a formula: `score(config)` in [0, 1] is reached linearly over four evaluations.

    `calls` holds (settings' key, seed) of every run; `fail_at` raises at the n-th call, once.
    """

    def __init__(self, score, *, fail_at=(), metrics=None):
        self.score = score
        self.fail_at = dict.fromkeys(fail_at, True)
        self.metrics = metrics or (lambda config, step: {})
        self.calls = []
        self._lock = threading.Lock()

    def __call__(self, run, watch: RunWatch):
        with self._lock:
            self.calls.append((run.label["trial"], run.config.seed))
            number = len(self.calls)
        run.on_begun(f"scripted/{run.label['trial']}-{run.config.seed}")
        if self.fail_at.pop(number, False):
            raise RuntimeError("the machine burns")
        final = self.score(run.config)
        curve, reason = [], None
        num_steps = run.config.num_steps
        for step in range(1, num_steps + 1):
            value = final * step / num_steps
            curve.append((step, value, value))
            watch.evaluation(
                BenchmarkResult(
                    step=step, benchmark="arithmetic-validation", samples=(), results={"mean_at_k": value}
                )
            )
            try:
                watch.step(step, self.metrics(run.config, step))
            except Pruned as decision:
                reason = str(decision)
                break
        value = curve[-1][1]
        means = tuple(
            min(1.0, max(0.0, value + 0.03 * math.sin(9.0 * i + run.config.seed + 40.0 * final)))
            for i in range(NUM_PROBLEMS)
        )
        return SeedResult(
            seed=run.config.seed,
            state=FINISHED if reason is None else PRUNED,
            reason=reason,
            run=f"scripted/{run.label['trial']}-{run.config.seed}",
            step=len(curve),
            k=2,
            mean_at_k=value,
            pass_at_k=value,
            curve=tuple(curve),
            problem_means=means,
            test={
                "arithmetic-test": {
                    "step": len(curve),
                    "mean_at_k": value,
                    "pass_at_k": value,
                    "problem_means": list(means),
                }
            },
            collapse="",
            num_tokens=100 * num_steps,
        )


@pytest.fixture
def define(tmp_path):
    """A definition of a small delta sweep, changed as asked."""

    def make(**changes):
        data = {
            "name": "small",
            "question": "Does it work?",
            "base": ["experiment=stress", "algorithm=atr", "num_steps=4", "optimizer.num_warmup_steps=1"],
            "space": {"divergence.delta": {"low": 0.002, "high": 0.2, "log": True, "num": 3}},
            "seeds": [0, 1],
            "trials": 3,
            "pruner": {"collapse_steps": None},
            "runs_dir": str(tmp_path / "runs"),
            **changes,
        }
        return validate(SweepDefinition, data, "test.yaml")

    return make


@pytest.fixture(params=["journal", "sqlite"])
def storage(request, tmp_path):
    return SweepStorage(storage_url(request.param, tmp_path / "storage"))


@pytest.fixture
def journal(tmp_path):
    return SweepStorage(storage_url("journal", tmp_path / "storage"))


@pytest.fixture
def sweep(journal):
    """Run a definition with one worker and a scripted executor; the worker's studies."""

    def run(definition, execute, storage=journal):
        prepare(storage, definition)
        worker = new_worker(storage, definition, execute)
        worker.work()
        return worker._studies

    return run


def new_worker(storage, definition, execute, *, should_stop=lambda: False):
    return SweepWorker(
        storage, definition, execute, should_stop=should_stop, log=lambda line: None, interval_s=0.2
    )
