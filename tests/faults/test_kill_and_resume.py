"""Real processes of `atrium train`, killed at random moments of their lives, resumed, and compared.

A moment is drawn uniformly over an undisturbed run's life from the making of its folder on, warm-up and
first evaluation included. It is kept as a number of recorded steps and a share of the next one, so that
it means the same on a slower machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.torch import load_file
from tests.forked import Forked

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import is_repeatable
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, read_status
from atrium.train.checkpoint.checkpoint import latest_checkpoint

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

NUM_STEPS, NUM_KILLS, SEED = 8, 4, 0
SETTINGS = (
    "debug=tiny_steps",
    "reward=random",
    f"num_steps={NUM_STEPS}",
    "checkpoint.every_num_steps=2",
    "algorithm=grpo_kl",
    "algorithm.reference.kind=every_num_steps",
    "algorithm.reference.num_steps=3",
    "rollout.max_new_tokens=24",
    "optimizer.learning_rate=0.01",
    "tracking.figures=false",
    "tracking.progress=off",
    "experiment_name=killed",
)
MARK = "ATRIUM_TEST_OF_FAULTS"
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Moment:
    """After `num_recorded` steps are recorded (0: the folder is made), and a share of the next one."""

    num_recorded: int
    share: float


@dataclass(frozen=True)
class Life:
    """How long an undisturbed run took: from its folder to its first recorded step, and per step."""

    first_s: float
    step_s: float

    def moments(self, num):
        total_s = self.first_s + (NUM_STEPS - 1) * self.step_s
        for at_s in np.random.default_rng(SEED).uniform(0.0, total_s, num):
            if at_s < self.first_s:
                yield Moment(0, at_s / self.first_s)
            else:
                steps = (at_s - self.first_s) / self.step_s
                yield Moment(1 + int(steps), steps % 1.0)

    def sleep(self, moment):
        time.sleep(moment.share * (self.step_s if moment.num_recorded else self.first_s))


@dataclass(frozen=True)
class Process:
    """A running `atrium train`."""

    runs_dir: Path
    popen: Forked

    @property
    def folder(self):
        """The run directory, or None before it is made."""
        with contextlib.suppress(OSError):
            for path in (self.runs_dir / "killed").iterdir():
                return RunFolder(path)
        return None

    def wait_for(self, condition):
        """Whether the condition came true while the process lived."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if condition():
                return True
            if self.popen.poll() is not None:
                return condition()
            time.sleep(0.005)
        self.popen.kill()
        self.end()
        raise AssertionError(f"nothing happened within {PATIENCE_S:g} s")

    def wait_for_steps(self, num):
        return self.wait_for(
            lambda: self.folder is not None and len(read_json_lines(self.folder.metrics_file).records) >= num
        )

    def end(self):
        """The exit code and what was said on standard error."""
        _, said = self.popen.communicate(timeout=PATIENCE_S)
        return self.popen.returncode, said.decode()


def start(runs_dir, *arguments):
    environment = os.environ | {MARK: str(runs_dir), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = ("-m", "atrium", "train", f"runs_dir={runs_dir}", *arguments)
    return Process(runs_dir, Forked(*command, environment=environment, cwd=runs_dir.parent))


def leftovers(runs_dir):
    """Processes, workers included, that were started for these runs and still live."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(runs_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def assert_no_leftovers(runs_dir):
    deadline = time.monotonic() + 30.0
    while (found := leftovers(runs_dir)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not found


def record_of(folder):
    """All of a run's record that has to be equal, bit for bit."""
    metrics = [
        {name: value for name, value in record.items() if is_repeatable(name) and name != "time"}
        for record in read_json_lines(folder.metrics_file).records
    ]
    evaluations = [
        {name: value for name, value in record.items() if name != "time"}
        for record in read_json_lines(folder.evaluations_file).records
    ]
    return metrics, evaluations


def assert_equal_runs(folder, other):
    assert record_of(folder) == record_of(other)
    ours, theirs = (latest_checkpoint(run.checkpoints_dir) for run in (folder, other))
    assert replace(ours.state, wall_s=0.0) == replace(theirs.state, wall_s=0.0)
    tensors = [
        load_file(run.policy / "model.safetensors") | run.optimizer | run.reference for run in (ours, theirs)
    ]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(value.equal(tensors[1][name]) for name, value in tensors[0].items())


@pytest.fixture(scope="module")
def runs_dirs(tmp_path_factory):
    """A new runs directory at every call, so that every run has its own warm-up to be killed in."""
    return lambda name: tmp_path_factory.mktemp(name) / "runs"


@pytest.fixture(scope="module")
def undisturbed(runs_dirs):
    """A run that nothing happens to, and how long it took."""
    process = start(runs_dirs("undisturbed"), *SETTINGS)
    assert process.wait_for(lambda: process.folder is not None)
    made = time.monotonic()
    assert process.wait_for_steps(1)
    first = time.monotonic()
    assert process.wait_for_steps(NUM_STEPS)
    last = time.monotonic()
    code, said = process.end()
    assert (code, said) == (0, "")
    return process.folder, Life(first - made, (last - first) / (NUM_STEPS - 1))


def killed_at(process, moment, life):
    """Kill the process at the moment; whether it still ran then."""
    process.wait_for_steps(moment.num_recorded)
    life.sleep(moment)
    process.popen.send_signal(signal.SIGKILL)
    code, _ = process.end()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def story(runs_dir, moments, life):
    """A run killed at each of the moments in turn, resumed after each; how many met it alive."""
    process = start(runs_dir, *SETTINGS)
    num_kills = 0
    for moment in moments:
        num_kills += killed_at(process, moment, life)
        folder = process.folder
        if folder.config_file.is_file():
            process = start(runs_dir, "--resume", str(folder.path))
        else:  # it was killed as it made its folder: there is nothing to continue
            shutil.rmtree(folder.path)
            process = start(runs_dir, *SETTINGS)
    code, said = process.end()
    assert code == 0, said
    assert_no_leftovers(runs_dir)
    return process.folder, num_kills


@pytest.fixture(scope="module")
def stories(undisturbed, runs_dirs):
    """All stories, two at a time: every fourth run is killed once more after it was resumed."""
    _, life = undisturbed
    moments = [*life.moments(NUM_KILLS)]
    again = [*life.moments(2 * NUM_KILLS)][NUM_KILLS:]
    plots = [
        [moment, again[number]] if number % 4 == 0 else [moment] for number, moment in enumerate(moments)
    ]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(story, runs_dirs(f"run-{n}"), plot, life) for n, plot in enumerate(plots)]
        yield [(future, len(plot)) for future, plot in zip(futures, plots, strict=True)]


@pytest.mark.parametrize("number", range(NUM_KILLS))
def test_a_run_killed_at_a_random_moment_and_resumed_equals_an_undisturbed_one(undisturbed, stories, number):
    future, _ = stories[number]
    folder, _ = future.result()
    assert read_status(folder.status_file).state == RunState.FINISHED
    assert_equal_runs(folder, undisturbed[0])


def test_nearly_all_kills_met_a_living_run(stories):
    num_killed = sum(future.result()[1] for future, _ in stories)
    assert num_killed >= 0.9 * sum(num_moments for _, num_moments in stories)


LONG_STEPS = ("num_steps=50", "rollout.num_prompts=64", "rollout.group_size=8")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_ends_the_run_after_its_step_with_a_checkpoint(runs_dirs, number):
    long = ("num_steps=500", "checkpoint.every_num_steps=500")
    process = start(runs_dirs(number.name), *SETTINGS, *long)
    assert process.wait_for_steps(2)
    process.popen.send_signal(number)
    code, said = process.end()
    assert code == 130
    assert said.count("\n") == 1
    assert "with a checkpoint; continue with --resume" in said
    status = read_status(process.folder.status_file)
    assert status.state == RunState.INTERRUPTED
    records = read_json_lines(process.folder.metrics_file).records
    assert latest_checkpoint(process.folder.checkpoints_dir).state.step == records[-1]["step"] == status.step
    assert_no_leftovers(process.runs_dir)


def test_a_second_interrupt_stops_at_once(runs_dirs):
    process = start(runs_dirs("twice"), *SETTINGS, *LONG_STEPS)
    assert process.wait_for_steps(1)
    process.popen.send_signal(signal.SIGINT)
    assert process.wait_for(lambda: "stopping after this step" in process.folder.log_file.read_text())
    process.popen.send_signal(signal.SIGINT)
    code, _ = process.end()
    assert code == 130
    status = read_status(process.folder.status_file)
    assert (status.state, status.error) == (RunState.INTERRUPTED, "stopped at once")
    assert len(read_json_lines(process.folder.metrics_file).records) == 1
    assert_no_leftovers(process.runs_dir)
