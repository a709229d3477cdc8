"""Run directories with the outcomes that a test wants, written by the tracker that training uses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.run_records import evaluated_sample, leave, method_settings, sum_problem, write_run

from atrium.base.records import BenchmarkResult
from atrium.evaluation.results import summarize
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState

DIVERGENCES = {
    "atr": {"kind": "kl3", "delta": 0.0231},
    "grpo": {"kind": "ratio", "delta": 0.2},
    "clip_higher": {"kind": "asymmetric_ratio", "epsilon_low": 0.2, "epsilon_high": 0.28},
}


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Make a run whose evaluations have the counts given: {(benchmark, step): [correct per problem]}.

    It ends in `state`, which may be one that only readers conclude, after step `until` of `num_steps`. With
    `draws="shared"` its evaluations say nothing of their draws, as those from before they did.
    """
    # Nothing here is about the loss of power, and flushing a busy disk takes most of a run's time.
    monkeypatch.setattr("os.fsync", lambda descriptor: None)

    def make(
        algorithm,
        seed,
        counts,
        *,
        k=4,
        experiment="study",
        num_steps=4,
        step_tokens=100,
        state=RunState.FINISHED,
        until=None,
        draws="keyed",
        **settings,
    ):
        folder = RunFolder.create(tmp_path / "runs", experiment, algorithm, seed)
        config = {
            "seed": seed,
            "num_steps": num_steps,
            "experiment_name": experiment,
            "runs_dir": str(tmp_path / "runs"),
            **method_settings(algorithm, DIVERGENCES.get(algorithm, DIVERGENCES["grpo"])),
            "optimizer": {"learning_rate": 3e-4},
            "evaluation": {"seed": 0},
            **settings,
        }
        folder.write_config(config)
        folder.write_overrides([f"algorithm={algorithm}", f"seed={seed}"])
        (folder.path / "provenance.json").write_text(
            json.dumps({"code": {"commit": "c0ffee" * 6, "diff": ""}, "packages": {"torch": "2.11"}})
        )

        def metrics(step):
            return {"rollout/num_tokens": step_tokens, "time/step_s": 2.0, "rollout/reward": 0.1 * step}

        def evaluations(step):
            for (benchmark, at), count_P in counts.items():
                if at == step:
                    answers = _samples(count_P, k)
                    results = summarize(answers, num_samples=k, pass_at=[1, k])
                    if draws == "keyed":
                        results["draws"] = {"evaluation_seed": 0, "run_seed": seed if step else None}
                    yield BenchmarkResult(step=step, benchmark=benchmark, samples=answers, results=results)

        writer = write_run(folder, num_steps=num_steps, last=until, metrics=metrics, evaluations=evaluations)
        leave(writer, state, "as the test wants")
        return folder

    return make


@pytest.fixture
def make_study(make_run):
    """Make runs of arms over seeds on one benchmark; `effects` by algorithm, in shares of all answers."""

    def make(effects, num_seeds=3, num_problems=40, k=4, seed=0, benchmarks=("exam",), **settings):
        runs = []
        for number in range(num_seeds):
            for algorithm, effect in effects.items():
                counts = {}
                for place, benchmark in enumerate(benchmarks):
                    easy_P = np.random.default_rng([seed, place]).uniform(0.2, 0.7, num_problems)
                    draw = np.random.default_rng([seed, place, number, len(algorithm)])
                    shift = effect + draw.normal(0.0, 0.02)
                    counts[(benchmark, 0)] = draw.binomial(k, easy_P * 0.3).tolist()
                    counts[(benchmark, 4)] = draw.binomial(k, np.clip(easy_P + shift, 0, 1)).tolist()
                runs.append(make_run(algorithm, number, counts, k=k, **settings))
        return runs

    return make


def _samples(count_P, k):
    return [
        evaluated_sample(sum_problem(index), sample, is_correct=sample < count)
        for index, count in enumerate(count_P)
        for sample in range(k)
    ]
