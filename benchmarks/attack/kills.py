"""Processes of every kind of command, killed at random moments, and given again to end as if nothing was.

A moment is drawn uniformly over the undisturbed command's life. Killed is the command's own process or, as
often, any process that it has started. What both leave, times excepted, has to be equal to the bit.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from benchmarks.attack.outcomes import Attempt, Outcome
from tests.benchmark_files import small_suite

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import is_repeatable
from atrium.base.recorded import read_object
from atrium.runs.find import list_runs
from atrium.runs.layout import RunLayout

MARK = "ATRIUM_ATTACK"
PATIENCE_S = 900.0
MAX_RESUMES = 4
TRAIN = (
    "train",
    "debug=tiny_steps",
    "reward=random",
    "num_steps=4",
    "checkpoint.every_num_steps=1",
    "rollout.max_new_tokens=24",
    "tracking=none",
    "tracking.figures=false",
    "experiment_name=attacked",
)
SWEEP = """\
question: Does every trial end once?
base: [debug=tiny_steps, reward=random, num_steps=2, tracking=none, tracking.figures=false, grader=exact]
space: {optimizer.learning_rate: {choices: [1.0e-4, 1.0e-3]}}
seeds: [0, 1]
objectives: [{metric: entropy, direction: maximize}]
sampler: {kind: grid}
pruner: {collapse_steps: null}
trials: 2
max_attempts: 20
"""
Record = dict[str, object]


@dataclass(frozen=True)
class Kind:
    """A kind of command: its arguments, how it is given again, and what it leaves in a folder of runs."""

    begin: Callable[[Path], Sequence[str]]
    again: Callable[[Path], Sequence[str]]
    record: Callable[[Path], Record]


def attempts(num: int, seed: int, place: Path) -> Iterator[Attempt]:
    """So many kills that met a living process, over all kinds in turn; each told as it ended."""
    rng = random.Random(seed)
    names = list(itertools.islice(itertools.cycle(KINDS), num))
    undisturbed = {name: _undisturbed(name, KINDS[name], place) for name in dict.fromkeys(names)}
    for number, name in enumerate(names):
        prepared, life_s, expected = undisturbed[name]
        runs_dir = place / f"kill-{number}" / "runs"
        while True:
            shutil.rmtree(runs_dir.parent, ignore_errors=True)
            shutil.copytree(prepared, runs_dir)
            process = _start(KINDS[name].begin(runs_dir), runs_dir)
            time.sleep(rng.uniform(0.0, life_s))
            if told := _kill(process, rng):
                break
        yield _given_again(name, told, runs_dir, expected)
        shutil.rmtree(runs_dir.parent)


def _undisturbed(name: str, kind: Kind, place: Path) -> tuple[Path, float, Record]:
    """The folder that a command of the kind starts from, how long it takes, and what it leaves."""
    prepared, runs_dir = (place / name.replace(" ", "_") / part / "runs" for part in ("before", "after"))
    prepared.mkdir(parents=True)
    if name == "evaluations of a suite":  # of a policy that was trained before
        _ended(_start([*TRAIN, f"runs_dir={prepared}"], prepared))
    shutil.copytree(prepared, runs_dir)
    _ended(_start(kind.begin(runs_dir), runs_dir))
    expected = kind.record(runs_dir)
    # The warm-up is made once for all; tests/faults kills it, too.
    shutil.copytree(runs_dir / ".cache", prepared / ".cache", dirs_exist_ok=True)
    shutil.rmtree(runs_dir)
    shutil.copytree(prepared, runs_dir)
    started = time.monotonic()
    _ended(_start(kind.begin(runs_dir), runs_dir))
    return prepared, time.monotonic() - started, expected


def _start(arguments: Sequence[str], runs_dir: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {MARK: str(runs_dir), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with (runs_dir.parent / "said.txt").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "atrium", *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=said,
            cwd=runs_dir.parent,
        )


def _ended(process: subprocess.Popen[bytes]) -> None:
    if code := process.wait(PATIENCE_S):
        raise RuntimeError(f"an undisturbed command ended with exit code {code}: {process.args!r}")


def _kill(process: subprocess.Popen[bytes], rng: random.Random) -> str:
    """Kill one process of the command and wait for its end; what was killed, nothing if it had ended."""
    with suppress(psutil.Error):
        main = psutil.Process(process.pid)
        victims = [main, *main.children(recursive=True)] if rng.random() < 0.5 else [main]
        victim = rng.choice(victims)
        words = "the command" if victim == main else " ".join(victim.cmdline())[-60:]
        if process.poll() is None:
            victim.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
            return words
    process.wait(PATIENCE_S)
    return ""


def _given_again(name: str, killed: str, runs_dir: Path, expected: Record) -> Attempt:
    said_file = runs_dir.parent / "said.txt"
    kind, codes = KINDS[name], []
    for _ in range(MAX_RESUMES):
        process = _start(kind.again(runs_dir), runs_dir)
        codes.append(process.wait(PATIENCE_S))
        if codes[-1] == 0:
            break
    said = f"exit codes {codes}: {said_file.read_text(errors='replace')[-500:]}"
    if codes[-1]:
        return Attempt(f"kills: {name}", killed, Outcome.FELL, said)
    if different := [key for key, value in kind.record(runs_dir).items() if value != expected.get(key)]:
        return Attempt(f"kills: {name}", killed, Outcome.FELL, f"another result: {', '.join(different)}")
    if left := _left(runs_dir):
        return Attempt(f"kills: {name}", killed, Outcome.FELL, f"processes are left: {left}")
    return Attempt(f"kills: {name}", killed, Outcome.HELD, said)


def _left(runs_dir: Path) -> list[str]:
    """Processes that were started for these runs and live on; a minute is theirs to end."""
    found: list[str] = []
    for _ in range(60):
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == str(runs_dir) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline())[-80:])
        if not found:
            break
        time.sleep(1.0)
    return found


def _training(*settings: str) -> Kind:
    def begin(runs_dir: Path) -> Sequence[str]:
        return [*TRAIN, *settings, f"runs_dir={runs_dir}"]

    def again(runs_dir: Path) -> Sequence[str]:
        for run in list_runs(runs_dir):
            if run.config_file.is_file():
                return ["train", "--resume", str(run.path)]
            shutil.rmtree(run.path)  # killed as it made its folder: there is nothing to continue
        return begin(runs_dir)

    return Kind(begin=begin, again=again, record=_training_record)


def _training_record(runs_dir: Path) -> Record:
    (run,) = list_runs(runs_dir)
    return _lines_of(run) | {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.checkpoint_path(4).rglob("*.safetensors"))
    }


def _lines_of(run: RunLayout) -> Record:
    """Metrics and evaluations without times and places."""
    records = {file.name: read_json_lines(file).records for file in (run.metrics_file, run.evaluations_file)}
    return {
        name: [
            {key: value for key, value in line.items() if is_repeatable(key) and key != "time"}
            for line in lines
        ]
        for name, lines in records.items()
    }


def _evaluations(runs_dir: Path) -> list[RunLayout]:
    return [run for run in list_runs(runs_dir) if read_object(run.config_file)[0].get("kind") == "evaluation"]


def _evaluate(runs_dir: Path) -> Sequence[str]:
    (run,) = list_runs(runs_dir)
    return [
        "evaluate",
        "--run",
        str(run.path),
        *small_suite(runs_dir.parent),
        "evaluation.num_samples=64",
        "evaluation.max_new_tokens=64",
        f"runs_dir={runs_dir}",
    ]


def _evaluate_again(runs_dir: Path) -> Sequence[str]:
    if found := _evaluations(runs_dir):
        return ["evaluate", "--resume", str(found[0].path)]
    for run in list_runs(runs_dir)[1:]:
        shutil.rmtree(run.path)  # killed as it made its folder
    return _evaluate(runs_dir)


def _evaluation_record(runs_dir: Path) -> Record:
    (run,) = _evaluations(runs_dir)
    rows = {
        str(path.relative_to(run.path)): pq.read_table(path).to_pylist()
        for path in sorted(run.evaluations_dir.rglob("*.parquet"))
    }
    return {**_lines_of(run), **rows}


def _sweep(runs_dir: Path) -> Sequence[str]:
    path = runs_dir.parent / "attacked.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    return ["sweep", str(path), f"runs_dir={runs_dir}"]


def _sweep_record(runs_dir: Path) -> Record:
    state = json.loads((runs_dir / "sweeps" / "attacked" / "state.json").read_text(encoding="utf-8"))
    return {str(trial["number"]): (trial["state"], trial["values"]) for trial in state["trials"]}


KINDS = {
    "training": _training(),
    "sampling ahead": _training("rollout.unit_samples=8", "rollout.lag=2"),
    "two processes": _training("compute.num_processes=2"),
    "evaluations of a suite": Kind(begin=_evaluate, again=_evaluate_again, record=_evaluation_record),
    "sweeps": Kind(begin=_sweep, again=_sweep, record=_sweep_record),
}
