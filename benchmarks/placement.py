"""Time steps with `rollout.lag=1`: vLLM inside the trainer's process against a vLLM server, as JSON.

Complete runs with the same settings alternate, with one thread per process. `step_ratio` is the median ratio
of the median step times of paired runs, server to inside. `bound` is the ratio that the machine allows:
max(sampling, update) relative to their sum, times `machine_factor` on a CPU. This factor says how many times
as long a matrix product takes if two processes compute one at the same time. `reached` is `bound /
step_ratio`. The start of the server is excluded. On a single GPU, both sides share the device, which `bound`
ignores. `costs` are those of one server: its start, a weight update, and the CPU time of its API process and
of the trainer per request and per token. Use an otherwise idle machine, and a Python with vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

import record

if TYPE_CHECKING:
    from atrium.engines.server.engine import ServerEngine

_BUILT_IN = (
    "model.head_dim=32",
    "model.warmup.num_clean_steps=0",
    "model.warmup.num_imperfect_steps=0",
    "compute.num_threads=1",
)
_REQUESTS = 512
_TIMES = ("time/step_s", "time/rollout_s", "time/update_s", "time/overlap_s", "time/batch_wait_s")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = options.add_argument
    add("--engine", default="vllm_cpu", choices=("vllm_cpu", "vllm"))
    add(
        "--steps",
        type=int,
        default=10,
        help="steps per run, of which the first two do not count (default %(default)s)",
    )
    add("--rounds", type=int, default=3, help="runs of each kind (default %(default)s)")
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--model", help="a file of conf/model, with random weights (default: the built-in model)")
    add("settings", nargs="*", help="other settings of the run, such as rollout.num_prompts=32")
    return options.parse_args()


def settings(args: argparse.Namespace, runs_dir: Path, placement: str) -> list[str]:
    """Return the settings of a run."""
    return [
        f"rollout={args.engine}",
        *([f"model={args.model}", "model.weights=random"] if args.model else _BUILT_IN),
        f"compute={args.device}",
        "reward=random",
        "rollout.lag=1",
        f"rollout.placement={placement}",
        *(["rollout.devices=[0]"] if placement == "server" and args.device == "cuda" else []),
        f"num_steps={args.steps}",
        "dataset.num_validation=8",
        "dataset.num_test=8",
        "evaluation.num_samples=1",
        "evaluation.max_new_tokens=${rollout.max_new_tokens}",
        "evaluation.every_num_steps=null",
        "checkpoint.keep_best=false",
        "checkpoint.every_num_steps=1000",
        "tracking=none",
        "tracking.figures=false",
        "tracking.progress=off",
        f"runs_dir={runs_dir}",
        *args.settings,
    ]


def run(args: argparse.Namespace, runs_dir: Path, placement: str) -> dict[str, float]:
    """Train a run, and return the median of each time over its steps."""
    from atrium.assemble.graders import build_grader
    from atrium.assemble.training import run_training
    from atrium.base.json_lines import read_json_lines
    from atrium.config.compose import compose
    from atrium.runs.run_folder import RunFolder

    lines = settings(args, runs_dir, placement)
    config = compose(lines)
    config.rollout.prepare_environment(args.device, runs_dir / ".cache")
    with build_grader(config.grader, config.model) as grader:
        folder = RunFolder(run_training(config, grader, lines))
    # The first step samples two batches, and an evaluation follows the last step.
    steps = list(read_json_lines(folder.metrics_file).records)[2:-1]
    return {name: statistics.median(step.get(name, 0.0) for step in steps) for name in _TIMES}


def server_costs(args: argparse.Namespace, runs_dir: Path) -> dict[str, float]:
    """Measure the costs of one server: seconds, milliseconds per request and microseconds per token."""
    from atrium.assemble.policies import build_policy
    from atrium.assemble.run import Run
    from atrium.assemble.servers import build_placed_engine
    from atrium.config.compose import compose
    from atrium.engines.server.engine import ServerEngine
    from atrium.engines.server.process import SERVER_MODULE
    from atrium.runs.listener import Listener
    from atrium.runs.run_folder import RunFolder
    from atrium.train.ranks.ranks import SINGLE
    from atrium.views.live.log_display import LogDisplay

    config = compose(settings(args, runs_dir, "server"))
    config.rollout.prepare_environment(args.device, runs_dir / ".cache")
    policy = build_policy(config, runs_dir / ".cache", Listener())
    started = time.perf_counter()
    run = Run(
        config=config,
        folder=RunFolder(runs_dir / "costs"),
        ranks=SINGLE,
        listener=LogDisplay(lambda line: print(line, file=sys.stderr)),
        closing=contextlib.ExitStack(),
        checkpoint=None,
        summary={},
    )
    engine = build_placed_engine(run, policy)
    assert isinstance(engine, ServerEngine)
    costs = {"start_s": time.perf_counter() - started}
    try:
        [leader] = [one for one in psutil.Process().children() if SERVER_MODULE in one.cmdline()]
        costs["start_cpu_s"] = sum(_cpu_s(one) for one in (leader, *leader.children(recursive=True)))
        updates = []
        for version in range(1, 6):
            started = time.perf_counter()
            engine.update_weights(policy.model.state_dict(), version)
            updates.append(time.perf_counter() - started)
        costs["update_s"] = statistics.median(updates)
        costs |= request_costs(engine, leader)
    finally:
        engine.close()
    return {name: round(value, 3) for name, value in costs.items()}


def request_costs(engine: ServerEngine, leader: psutil.Process) -> dict[str, float]:
    """Measure the CPU time of the server's API process and of this process per request and per token."""
    from atrium.engines.engine import GenerationRequest, SamplingParams

    prompt = np.array([1, 2, 3], dtype=np.int32)
    requests = [GenerationRequest(prompt_token_ids=prompt, sample_seeds=(seed,)) for seed in range(_REQUESTS)]
    sides = [leader, psutil.Process()]
    spent = []
    for num_tokens in (1, 1, 33):  # the first round warms up
        before = [_cpu_s(side) for side in sides]
        sampling = SamplingParams(max_new_tokens=num_tokens, ignore_stop=True)
        assert len(list(engine.generate(requests, sampling))) == _REQUESTS
        spent.append([_cpu_s(side) - start for side, start in zip(sides, before, strict=True)])
    costs = {}
    for number, side in enumerate(("api", "trainer")):
        costs[f"{side}_ms_per_request"] = 1e3 * spent[1][number] / _REQUESTS
        costs[f"{side}_us_per_token"] = 1e6 * (spent[2][number] - spent[1][number]) / _REQUESTS / 32
    return costs


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def product_s(_: int = 0) -> float:
    """Return the median seconds of a matrix product on one thread."""
    import torch

    torch.set_num_threads(1)
    factor = torch.ones(512, 512)
    seconds = []
    for _repeat in range(100):
        started = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def machine_factor() -> float:
    """Return how many times as long a matrix product takes if two processes compute one simultaneously."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(product_s, range(2), chunksize=1)  # make both processes load torch
        together = statistics.mean(pool.map(product_s, range(2), chunksize=1))
        return together / pool.apply(product_s)


def main() -> None:
    """Run both placements in turns and print the record."""
    args = parse()
    found: dict[str, list[dict[str, float]]] = {"inside": [], "server": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds):
            for placement in sorted(found, reverse=turn % 2 == 0):
                with contextlib.redirect_stdout(sys.stderr):  # the run's output is not part of the record
                    found[placement].append(run(args, Path(folder), placement))
        costs = server_costs(args, Path(folder))
    pairs = zip(found["server"], found["inside"], strict=True)
    report: dict[str, Any] = {
        "impl": record.versions("atrium-rl", "transformers", "torch"),
        **record.machine(args.device),
        "load": [round(load, 2) for load in os.getloadavg()],
        "engine": args.engine,
        "model": args.model or "built-in",
        "settings": args.settings,
        "steps": args.steps,
        "rounds": args.rounds,
        "step_ratio": round(statistics.median(a[_TIMES[0]] / b[_TIMES[0]] for a, b in pairs), 3),
        "costs": costs,
        "machine_factor": round(machine_factor(), 3) if args.device == "cpu" else 1.0,
    }
    for placement, runs in found.items():
        report[placement] = {key: round(statistics.median(one[key] for one in runs), 4) for key in _TIMES}
    inside = report["inside"]
    longest = max(inside["time/rollout_s"], inside["time/step_s"] - inside["time/rollout_s"])
    report["bound"] = round(report["machine_factor"] * longest / inside["time/step_s"], 3)
    report["reached"] = round(report["bound"] / report["step_ratio"], 3)
    record.print_record(**report)


if __name__ == "__main__":
    main()
