"""Real `atrium train` with `rollout.placement=cluster`, on a simulated Ray cluster of two nodes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
from safetensors.torch import load_file
from tests.ray_cluster import ray_cluster

from atrium.metrics import is_repeatable
from atrium.tracking.json_lines import read_json_lines
from atrium.tracking.run_folder import RunFolder

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

NUM_STEPS, PATIENCE_S, SEED = 6, 300.0, 0
SETTINGS = (
    "debug=tiny_steps",
    "reward=random",
    f"num_steps={NUM_STEPS}",
    "checkpoint.every_num_steps=2",
    "rollout=transformers",
    "rollout.lag=4",
    "rollout.unit_samples=8",
    "rollout.max_new_tokens=24",
    "dataset.num_validation=4",
    "dataset.num_test=4",
    "optimizer.learning_rate=0.01",
    "tracking.figures=false",
    "tracking.progress=off",
)
PLACES = {
    "inside": (),
    "beside": ("rollout.placement=beside", "rollout.num_engines=2"),
    "cluster": ("rollout.placement=cluster", "rollout.num_engines=2"),
}


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster() as environment:
        yield environment


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@contextmanager
def training(runs_dir, name, *arguments, environment=None):
    """A running `atrium train`, killed where the test fails."""
    own = () if "--resume" in arguments else (*SETTINGS, f"runs_dir={runs_dir}", f"experiment_name={name}")
    process = subprocess.Popen(
        [sys.executable, "-m", "atrium", "train", *own, *arguments],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def finished(runs_dir, name, *arguments, environment=None):
    """The folder of a run that has ended well, and what it said."""
    with training(runs_dir, name, *arguments, environment=environment) as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    return only(runs_dir, name), said


def only(runs_dir, name):
    (path,) = (runs_dir / name).iterdir()
    return RunFolder(path)


def record_of(folder):
    """What a run computed: all that is not a time, by step, and the weights."""
    steps = [
        {key: value for key, value in step.items() if key != "time" and is_repeatable(key)}
        for file in (folder.metrics_file, folder.evaluations_file)
        for step in read_json_lines(file).records
    ]
    weights = load_file(folder.checkpoint_path(NUM_STEPS) / "policy/model.safetensors")
    return steps, {name: weight.numpy().tobytes() for name, weight in weights.items()}


def actors(cluster):
    """The processes that engines on this cluster run in."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        is_engine = process.info["name"].startswith("ray::Answering") and process.info["status"] != "zombie"
        with suppress(psutil.Error):
            if is_engine and process.environ().get("RAY_AUTH_TOKEN") == cluster["RAY_AUTH_TOKEN"]:
                found.append(process)
    return found


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_steps(runs_dir, name, num):
    def has_them():
        with suppress(OSError, ValueError):
            return len(read_json_lines(only(runs_dir, name).metrics_file).records) >= num
        return False

    wait_for(has_them)


@pytest.fixture(scope="module")
def inside(runs_dir):
    folder, said = finished(runs_dir, "inside")
    return record_of(folder), said


def test_a_run_is_the_same_with_its_engine_inside_with_two_beside_and_on_two_nodes(runs_dir, cluster, inside):
    expected, said_inside = inside
    beside, _ = finished(runs_dir, "beside", *PLACES["beside"])
    assert record_of(beside) == expected
    on_cluster, said = finished(runs_dir, "cluster", *PLACES["cluster"], environment=cluster)
    assert record_of(on_cluster) == expected
    assert said.count("\n") == said_inside.count("\n"), said  # Ray says nothing in the run's terminal
    assert not actors(cluster)


def test_two_processes_of_a_run_have_an_engine_each_on_the_cluster(runs_dir, cluster):
    two = ("compute.num_processes=2",)
    inside, _ = finished(runs_dir, "two-inside", *two)
    on_cluster, _ = finished(runs_dir, "two-cluster", *two, *PLACES["cluster"], environment=cluster)
    assert record_of(on_cluster) == record_of(inside)
    assert not actors(cluster)


def test_actors_killed_at_random_moments_change_nothing(runs_dir, cluster, inside):
    killed, ended = [], threading.Event()

    def kill_some():
        draw = random.Random(SEED)
        while len(killed) < 3 and not ended.wait(draw.uniform(0.2, 2.0)):
            if found := actors(cluster):
                victim = draw.choice(found)
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
                    killed.append(victim.pid)

    killer = threading.Thread(target=kill_some)
    killer.start()
    try:
        folder, _ = finished(runs_dir, "killed", *PLACES["cluster"], environment=cluster)
    finally:
        ended.set()
        killer.join()
    assert record_of(folder) == inside[0]
    assert killed
    assert "is started again" in folder.log_file.read_text()


def test_a_trainer_that_is_killed_leaves_no_actor_and_the_run_resumes_elsewhere(runs_dir, cluster, inside):
    with training(runs_dir, "orphaned", *PLACES["cluster"], environment=cluster) as process:
        wait_for_steps(runs_dir, "orphaned", 3)
        found = actors(cluster)
        assert len(found) == 2
        process.kill()
        process.wait()
        psutil.wait_procs(found, timeout=60)
        assert not actors(cluster)
    path = str(only(runs_dir, "orphaned").path)
    finished(runs_dir, "orphaned", "--resume", path, "rollout.placement=inside", "rollout.num_engines=1")
    assert record_of(only(runs_dir, "orphaned")) == inside[0]


def test_nothing_listens_beyond_the_loopback_and_a_signal_ends_the_run_in_order(runs_dir, cluster):
    long = ("num_steps=500", "checkpoint.every_num_steps=500")
    with training(runs_dir, "listening", *PLACES["cluster"], *long, environment=cluster) as process:
        wait_for_steps(runs_dir, "listening", 1)
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        assert {actor.pid for actor in actors(cluster)} <= {one.pid for one in family}
        listening = [
            connection.laddr.ip
            for one in family
            for connection in one.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert len(listening) > 4
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        process.send_signal(signal.SIGTERM)  # for which Ray has a handler of its own
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, said
    assert any(only(runs_dir, "listening").checkpoints_dir.iterdir())
    assert not actors(cluster)


def refusal(runs_dir, *arguments, environment):
    with training(runs_dir, "refused", *PLACES["cluster"], *arguments, environment=environment) as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2, said
    assert said.count("\n") == 1, said
    assert not (runs_dir / "refused").exists()
    return said


def test_a_cluster_that_does_not_know_the_token_is_one_line(runs_dir, cluster):
    said = refusal(runs_dir, environment={**cluster, "RAY_AUTH_TOKEN": "another"})
    assert "RAY_AUTH_TOKEN" in said


def test_a_cluster_that_asks_for_no_token_is_refused(runs_dir):
    with ray_cluster(asks_for_token=False) as environment:
        environment = {"RAY_ADDRESS": environment["RAY_ADDRESS"]}
        assert "RAY_AUTH_MODE=token" in refusal(runs_dir, environment=environment)
