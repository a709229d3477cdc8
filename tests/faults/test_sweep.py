"""Real sweeps of real training, with workers killed at random moments; and a real PostgreSQL.

The settings are planned (quasi-random) and nothing is pruned, so whatever happens to the workers every
value has to be that of an undisturbed sweep.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]

NUM_TRIALS, NUM_KILLS = 10, 4
DEFINITION = """\
question: Does every trial end once?
base:
  - experiment=stress
  - algorithm=atr
  - debug=tiny_steps
  - grader=exact
  - num_steps=2
  - checkpoint.every_num_steps=1
  - tracking.figures=false
  - evaluation.num_samples=1
  - tracking.rollouts_every_num_steps=null
space:
  divergence.delta: {low: 0.002, high: 0.2, log: true}
  optimizer.learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}
seeds: [0]
# A number in which every bit of training shows: accuracy of a model that knows no arithmetic is 0.
objectives: [{metric: entropy, direction: maximize}]
sampler: {kind: quasi_random}
pruner: {collapse_steps: null}
trials: TRIALS
max_attempts: 20
"""
MARK = "ATRIUM_TEST_OF_SWEEPS"

REPOSITORY = Path(__file__).resolve().parents[2]


def command(folder, *arguments):
    return [sys.executable, "-m", "atrium", "sweep", *arguments, f"runs_dir={folder / 'runs'}"]


def start(folder, *arguments, num_trials=NUM_TRIALS):
    path = folder / "killed.yaml"
    path.write_text(DEFINITION.replace("TRIALS", str(num_trials)))
    environment = os.environ | {MARK: str(folder), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with (folder / "said.txt").open("ab") as said:
        return subprocess.Popen(
            command(folder, str(path), *arguments), env=environment, stdout=said, stderr=said, cwd=folder
        )


def state_of(folder):
    try:
        return json.loads((folder / "runs/sweeps/killed/state.json").read_text())
    except FileNotFoundError:
        return {"trials": [], "workers": []}


def workers_of(folder):
    """The worker processes of a sweep that live now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "worker" in line and f"runs_dir={folder / 'runs'}" in line:
            found.append(process)
    return found


def num_ended(folder):
    return sum(trial["state"] not in ("waiting", "running") for trial in state_of(folder)["trials"])


def finish(process, folder, expected=0):
    assert process.wait(900) == expected, (folder / "said.txt").read_text()[-3000:]
    deadline = time.monotonic() + 30
    while workers_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers_of(folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The values of a sweep that nothing happens to, by trial; and its caches, for others to begin with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(start(folder, "workers=2"), folder)
    trials = state_of(folder)["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * NUM_TRIALS
    assert len({trial["values"][0] for trial in trials}) == NUM_TRIALS
    return {trial["number"]: trial["values"] for trial in trials}, folder / "runs" / ".cache"


def test_workers_killed_at_random_moments_lose_and_double_nothing(undisturbed, tmp_path):
    values, cache = undisturbed
    shutil.copytree(cache, tmp_path / "runs" / ".cache")
    process = start(tmp_path, "workers=2", "storage=sqlite")
    moments = np.random.default_rng(0)
    num_killed = 0
    while process.poll() is None and num_killed < NUM_KILLS:
        time.sleep(moments.uniform(1.0, 6.0))
        workers = workers_of(tmp_path)
        if workers and num_ended(tmp_path) < NUM_TRIALS - 2:
            workers[moments.integers(len(workers))].send_signal(signal.SIGKILL)
            num_killed += 1
        elif num_ended(tmp_path) >= NUM_TRIALS - 2:
            break
    finish(process, tmp_path)
    trials = state_of(tmp_path)["trials"]
    assert num_killed >= 2
    assert [trial["state"] for trial in trials] == ["complete"] * NUM_TRIALS
    assert {trial["number"]: trial["values"] for trial in trials} == values
    for trial in trials:
        assert [seed["state"] for seed in trial["seeds"]] == ["finished"]
    runs = [seed["run"] for trial in trials for seed in trial["seeds"]]
    assert len(set(runs)) == NUM_TRIALS
    on_disk = {f"killed/{path.parent.name}" for path in (tmp_path / "runs/killed").glob("*/sweep.json")}
    assert on_disk == set(runs), "a run that was killed is gone on with, in its own folder"


def test_a_stopped_sweep_goes_on_with_the_same_command_and_a_worker_may_join(undisturbed, tmp_path):
    values, cache = undisturbed
    shutil.copytree(cache, tmp_path / "runs" / ".cache")
    process = start(tmp_path, "workers=1")
    # By the second run directory: the state that is written at intervals may lag by all of the trials.
    while len([*tmp_path.glob("runs/killed/*/config.json")]) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    finish(process, tmp_path, expected=130)
    assert state_of(tmp_path)["state"] == "stopped"
    assert 1 <= num_ended(tmp_path) < NUM_TRIALS
    process = start(tmp_path, "workers=1")
    joined = subprocess.run(
        command(tmp_path, "worker", "killed"), cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert joined.returncode == 0, joined.stderr
    finish(process, tmp_path)
    trials = state_of(tmp_path)["trials"]
    assert {trial["number"]: trial["values"] for trial in trials} == values


def test_workers_end_with_the_command_that_started_them(undisturbed, tmp_path):
    shutil.copytree(undisturbed[1], tmp_path / "runs" / ".cache")
    process = start(tmp_path, "workers=1", num_trials=30)
    while num_ended(tmp_path) < 1 and process.poll() is None:
        time.sleep(0.1)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 120
    while workers_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not workers_of(tmp_path)


@pytest.fixture
def postgres():
    """The URL of a server of our own, which listens on a socket only."""
    script = ["sh", REPOSITORY / ".ci" / "software", "postgres"]
    found = subprocess.run(script, capture_output=True, text=True)
    if found.returncode:
        pytest.skip(found.stderr.strip().splitlines()[-1])
    server = Path(found.stdout.strip()).resolve()
    initdb = server.with_name("initdb")
    # Not below pytest's own folders, which are closed to the server's user.
    folder = Path(tempfile.mkdtemp(prefix="atrium-postgres-"))
    as_user = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    subprocess.run([*as_user, initdb, "-D", folder / "data", "-U", "sweeper", "--auth=trust"], check=True)
    options = ["-D", folder / "data", "-k", folder, "-c", "listen_addresses="]
    process = subprocess.Popen([*as_user, server, *options])
    try:
        deadline = time.monotonic() + 60
        while not (folder / ".s.PGSQL.5432").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield f"postgresql+psycopg://sweeper@/postgres?host={folder}"
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder)


def test_four_workers_share_a_postgresql_database(undisturbed, postgres, tmp_path):
    values, cache = undisturbed
    shutil.copytree(cache, tmp_path / "runs" / ".cache")
    process = start(tmp_path, "workers=4", f"storage={postgres}", num_trials=8)
    finish(process, tmp_path)
    trials = state_of(tmp_path)["trials"]
    assert {trial["number"]: trial["values"] for trial in trials} == {n: values[n] for n in range(8)}
