"""Synthetic runs for the dashboard benchmarks; only the last run has rollouts."""

from __future__ import annotations

import json
import shutil

import numpy as np

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

NUM_METRICS, NUM_COURSES = 40, 8
NUM_PROBLEMS, NUM_SAMPLES = 128, 8
NUM_ROLLOUT_FILES, ROLLOUTS_PER_FILE, TOKENS_PER_ROLLOUT = 100, 40, 500
ARMS = (
    ("atr", "kl3", {"delta": 0.0231}),
    ("grpo", "ratio", {"delta": 0.2}),
    ("clip_higher", "asymmetric_ratio", {"epsilon_low": 0.2, "epsilon_high": 0.28}),
    ("reinforce", "none", {}),
)


def make_course(path, num_steps, seed):
    """Write a metrics file with synthetic noisy curves."""
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
    """Write two million rollout tokens to one run."""
    rng = np.random.default_rng(1)
    for file in range(1, NUM_ROLLOUT_FILES + 1):
        step = file * num_steps // NUM_ROLLOUT_FILES
        groups, traces = [], []
        for problem_index in range(ROLLOUTS_PER_FILE // 8):
            problem = Problem(problem_id=f"train-{file}-{problem_index}", question="2+2=", answer="4")
            rollouts = []
            for index in range(8):
                rollouts.append(rollout(rng, index))
                traces.append(trace(rng))
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
    """Create a folder of runs; the file `.complete` is written last."""
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
