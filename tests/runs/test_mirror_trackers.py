"""Runs in the real MLflow and W&B: written by `atrium sync`, read back by the trackers' own means."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest

from atrium.base.records import BenchmarkResult
from atrium.cli.app import main
from atrium.runs.mirrors import delivery
from atrium.runs.mirrors.delivery import Mirrors, read_delivered
from atrium.runs.mirrors.targets import delivery_of
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState, read_status

pytestmark = [
    pytest.mark.full,
    # Of the trackers' packages and what they import.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def _no_accounts(monkeypatch, tmp_path):
    """No tracker of whoever runs the tests is touched."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE", "ATRIUM_MIRRORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.fixture
def recorded(tmp_path, samples, results):
    """Make a run with steps, an evaluation before and after, a figure, and NaN among its numbers."""

    def make(seed=0, num_steps=30, state=RunState.FINISHED, tracking=None):
        folder = RunFolder.create(tmp_path / "runs", "study", "atr", seed)
        folder.write_config(
            {
                "seed": seed,
                "algorithm": {"name": "atr", "advantage": {"ddof": 1}},
                "divergence": {"kind": "kl3", "delta": 0.02},
                "optimizer": {"betas": [0.9, 0.95], "clip": None, "fused": False},
                "tracking": tracking or {},
            }
        )
        folder.provenance_file.write_text(
            json.dumps({"code": {"commit": "c0ffee"}, "command": "atrium train"})
        )
        tracker = RunFolderWriter(folder)
        tracker.begin(step=0, num_steps=num_steps)
        tracker.evaluation(
            BenchmarkResult(step=0, benchmark="exam", samples=samples(), results=results(0.25))
        )
        for step in range(1, num_steps + 1):
            values = {"rollout/reward": step / 100, "mean@k": float("nan") if step == 2 else 0.5}
            values["rollout/num_tokens"] = 10.0 * step
            tracker.step(step, values)
        if state is not RunState.RUNNING:
            tracker.evaluation(
                BenchmarkResult(step=num_steps, benchmark="exam", samples=samples(), results=results(0.75))
            )
            (folder.path / "figures").mkdir()
            (folder.path / "figures" / "curves.png").write_bytes(b"figure")
            tracker.end(state)
        return folder

    return make


def mlflow_runs(uri, experiment_name="study"):
    """All runs of an experiment by name, and the client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(experiment_name)
    return client, {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def test_mlflow_has_every_number_setting_tag_and_file_of_a_run(recorded, tmp_path, capsys):
    folder = recorded()
    assert main(["sync", "study", "--to", "mlflow", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert "up to step 30" in capsys.readouterr().out
    client, runs = mlflow_runs(f"sqlite:///{tmp_path}/runs/mlflow.db")
    run = runs[folder.path.name]
    history = client.get_metric_history(run.info.run_id, "rollout/reward")
    assert [(m.step, m.value) for m in history] == [(step, step / 100) for step in range(1, 31)]
    history = client.get_metric_history(run.info.run_id, "evaluation/exam/mean_at_8")
    assert [(m.step, m.value) for m in history] == [(0, 0.25), (30, 0.75)]
    assert len(client.get_metric_history(run.info.run_id, "mean:40:k")) == 30
    assert run.data.params["divergence.delta"] == "0.02"
    tags = run.data.tags
    assert (tags["algorithm"], tags["divergence"], tags["seed"]) == ("atr", "kl3", "0")
    assert tags["mlflow.source.git.commit"] == "c0ffee"
    assert run.info.status == "FINISHED"
    linked = tmp_path / "runs/.mlflow/study" / run.info.run_id / "artifacts/figures/curves.png"
    assert linked.samefile(folder.path / "figures" / "curves.png")
    assert {a.path for a in client.list_artifacts(run.info.run_id)} >= {
        "config.json",
        "figures",
        "evaluations",
    }


def test_mlflow_gets_nothing_twice_even_where_the_record_of_delivery_is_lost(recorded, tmp_path):
    folder = recorded(num_steps=5, state=RunState.INTERRUPTED)
    arguments = ["sync", folder.path.name, "--to", "mlflow", "--runs-dir", str(tmp_path / "runs")]
    assert main(arguments) == 0
    (folder.path / ".mirrors" / "mlflow.json").unlink()
    assert main(arguments) == 0
    client, runs = mlflow_runs(f"sqlite:///{tmp_path}/runs/mlflow.db")
    assert len(runs) == 1
    run = runs[folder.path.name]
    assert len(client.get_metric_history(run.info.run_id, "rollout/reward")) == 5
    assert run.info.status == "KILLED"


def test_seeds_of_one_setting_become_children_of_one_parent_in_mlflow(recorded, tmp_path):
    folders = [recorded(seed, num_steps=2) for seed in range(3)]
    assert main(["sync", "study", "--to", "mlflow", "--runs-dir", str(tmp_path / "runs")]) == 0
    _, runs = mlflow_runs(f"sqlite:///{tmp_path}/runs/mlflow.db")
    [parent] = [run for name, run in runs.items() if name.endswith("(seeds)")]
    parents = {runs[folder.path.name].data.tags["mlflow.parentRunId"] for folder in folders}
    assert parents == {parent.info.run_id}


def train(tmp_path, *settings, **environment):
    """Start training, with steps of a few hundredths of a second."""
    command = [sys.executable, "-m", "atrium", "train", "debug=tiny_steps", f"runs_dir={tmp_path / 'runs'}"]
    return subprocess.Popen(
        [*command, "tracking.figures=false", *settings],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


def recorded_rewards(folder):
    lines = folder.metrics_file.read_text().splitlines()
    return {record["step"]: record["rollout/reward"] for record in map(json.loads, lines)}


@pytest.mark.parametrize("num_delivered", [pytest.param(0, marks=pytest.mark.release), 2])
def test_killed_training_loses_nothing_that_a_later_sync_does_not_bring(tmp_path, num_delivered):
    runs_dir = tmp_path / "runs"
    process = train(tmp_path, "tracking=mlflow", "num_steps=10000")
    try:
        wait_until(lambda: len(list(runs_dir.glob("debug/*/metrics.jsonl"))) == 1)
        folder = RunFolder(next(runs_dir.glob("debug/*")))
        wait_until(lambda: len(recorded_rewards(folder)) > 2)
        wait_until(lambda: not num_delivered or read_delivered(folder, "mlflow").step >= num_delivered)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert main(["sync", folder.path.name, "--to", "mlflow", "--runs-dir", str(runs_dir)]) == 0
    client, runs = mlflow_runs(f"sqlite:///{runs_dir}/mlflow.db", "debug")
    history = client.get_metric_history(runs[folder.path.name].info.run_id, "rollout/reward")
    assert [(m.step, m.value) for m in history] == list(recorded_rewards(folder).items())
    assert runs[folder.path.name].info.status == "KILLED"


@pytest.fixture
def address(request):
    """The address of a port that is closed, or of a server that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("closed", "mlflow"),
        ("silent", "wandb"),
        pytest.param("closed", "wandb", marks=pytest.mark.release),
        pytest.param("silent", "mlflow", marks=pytest.mark.release),
    ],
    indirect=["address"],
)
def test_server_that_cannot_be_reached_does_not_change_how_training_ends(tmp_path, address, kind):
    server = [f"tracking.mlflow.uri={address}"] if kind == "mlflow" else []
    environment = {"WANDB_BASE_URL": address, "WANDB_API_KEY": 40 * "a"}
    process = train(tmp_path, f"tracking={kind}", *server, "num_steps=4", **environment)
    output, _ = process.communicate(timeout=200)
    ended = time.time()
    [folder] = map(RunFolder, (tmp_path / "runs").glob("debug/*"))
    status = read_status(folder.status_file)
    assert (process.returncode, status.state) == (0, RunState.FINISHED), output
    assert ended - status.updated < 20
    assert len(recorded_rewards(folder)) == 4
    assert f"`atrium sync {folder.path} --to {kind}` delivers it" in output


def test_wrong_uri_is_reported_once_and_the_run_can_be_delivered_elsewhere(
    recorded, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(delivery, "LINGER_S", 0.0)
    folder = recorded(state=RunState.RUNNING, tracking={"mlflow": {"uri": "http://127.0.0.1:9"}})
    said = []
    mirrors = Mirrors(folder, {"mlflow": partial(delivery_of, folder, "mlflow")}, said.append)
    wait_until(lambda: mirrors.step(1, {}) or said)
    for _ in range(5):
        mirrors.step(1, {})
    assert len(said) == 1
    assert "refused" in said[0]
    assert "training continues" in said[0]
    tracker = RunFolderWriter(folder)
    tracker.end(RunState.FINISHED)
    mirrors.end(RunState.FINISHED)
    mirrors.close()
    assert f"atrium sync {folder.path} --to mlflow" in said[-1]
    mirrors._threads[0].join()
    runs_dir = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["sync", folder.path.name, "--to", "mlflow", *runs_dir]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    there = f"sqlite:///{tmp_path}/other.db"
    assert main(["sync", folder.path.name, "--to", "mlflow", "--uri", there, *runs_dir]) == 0
    assert folder.path.name in mlflow_runs(there)[1]


def test_wandb_has_a_complete_and_readable_offline_run(recorded, tmp_path):
    folder = recorded()
    arguments = ["sync", folder.path.name, "--to", "wandb", "--offline", "--runs-dir", str(tmp_path / "runs")]
    assert main(arguments) == 0
    [copy] = (folder.path / ".mirrors" / "wandb").glob("offline-run-*")
    history, run, exit_code, axes = read_offline_run(next(copy.glob("*.wandb")))
    assert [row["_step"] for row in history] == list(range(31))
    assert [row["rollout/reward"] for row in history[1:]] == [step / 100 for step in range(1, 31)]
    assert history[0]["evaluation/exam/mean_at_8"] == 0.25
    assert history[30]["evaluation/exam/mean_at_8"] == 0.75
    assert {"mean@k", "rollout/reward"} <= history[1].keys()
    assert run.display_name == folder.path.name
    assert run.run_group.startswith("atr kl3 ")
    assert [row["step"] for row in history] == list(range(31))
    assert [row["tokens"] for row in history[:4]] == [0, 10, 30, 60]
    assert axes == {"step": "", "tokens": "", "*": "step"}
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert not {key for key in config if "." in key}, "settings are nested"
    assert config["divergence"] == {"kind": "kl3", "delta": 0.02}
    assert config["algorithm"]["advantage"] == {"ddof": 1}
    assert config["optimizer"] == {"betas": [0.9, 0.95], "clip": None, "fused": False}
    assert type(config["seed"]) is int
    assert config["atrium"]["run"] == folder.name
    assert exit_code == 0
    assert (copy / "files" / "summary.json").exists()
    assert main(arguments) == 0
    assert len(list((folder.path / ".mirrors" / "wandb").glob("offline-run-*"))) == 1


def test_two_runs_of_one_process_stay_apart_in_wandb(recorded):
    deliveries = [delivery_of(recorded(seed, num_steps=3), "wandb", offline=True) for seed in range(2)]
    for one in deliveries:
        one.deliver(may_finish=False)
    for one in deliveries:
        assert one.deliver()
        one.close()
        [copy] = (one.folder.path / ".mirrors" / "wandb").glob("offline-run-*")
        history, run, _, _ = read_offline_run(next(copy.glob("*.wandb")))
        assert [row["_step"] for row in history] == [0, 1, 2, 3]
        assert run.display_name == one.folder.path.name


def test_wandb_online_without_a_key_says_what_to_do(recorded, tmp_path, capsys):
    folder = recorded(num_steps=2)
    assert main(["sync", folder.path.name, "--to", "wandb", "--runs-dir", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr().out
    assert "WANDB_API_KEY" in said
    assert "offline" in said


def test_tensorboard_reads_each_step_once_after_repeated_deliveries(recorded, tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = recorded()
    arguments = ["sync", folder.path.name, "--to", "tensorboard", "--runs-dir", str(tmp_path / "runs")]
    assert main(arguments) == 0
    with (folder.path / ".mirrors" / "tensorboard.json").open("r+") as file:
        file.truncate(0)  # as if the process had been killed before it noted what it sent
    assert main(arguments) == 0
    found = event_accumulator.EventAccumulator(str(folder.path / "tensorboard"))
    found.Reload()
    rewards = [(event.step, event.value) for event in found.Scalars("rollout/reward")]
    assert rewards == [(step, pytest.approx(step / 100)) for step in range(1, 31)]
    exams = {event.step: event.value for event in found.Scalars("evaluation/exam/mean_at_8")}
    assert (exams[0], exams[30]) == (0.25, 0.75)
    [settings] = found.Tensors("settings")
    assert b"divergence.delta" in settings.tensor_proto.string_val[0]


def test_trackio_has_each_step_once_where_the_record_of_delivery_is_lost(recorded, tmp_path):
    pytest.importorskip("trackio")
    folder = recorded()
    # Trackio chooses the place of its database when it is imported, so each command is a process.
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    run = partial(subprocess.run, env=environment, check=True, capture_output=True, text=True)
    sync = [sys.executable, "-m", "atrium", "sync", folder.path.name, "--to", "trackio"]
    for _ in range(2):
        run([*sync, "--runs-dir", str(tmp_path / "runs")])
        (folder.path / ".mirrors" / "trackio.json").unlink()
    read = """
import json
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage
[run] = Api().runs("atrium")
print(json.dumps([run.name, run.config, SQLiteStorage.get_logs("atrium", run.name, run_id=run.id)]))
"""
    name, config, history = json.loads(run([sys.executable, "-c", read]).stdout)
    assert name == folder.path.name
    assert config["_Group"].startswith("atr kl3 ")
    assert config["divergence"] == {"kind": "kl3", "delta": 0.02}
    assert [row["step"] for row in history] == list(range(31))
    assert [row["rollout/reward"] for row in history[1:]] == [step / 100 for step in range(1, 31)]
    scores = [history[step]["evaluation/exam/mean_at_8"] for step in (0, 30)]
    assert scores == [0.25, 0.75]


def wait_until(holds, timeout_s=90.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def read_offline_run(path):
    """History rows, the run's record, its exit code and the axes of its metrics from W&B's own file.

    The file is a LevelDB log of protobuf records. wandb publishes no reader since 0.31.
    """
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, parts, history, run, exit_code, axes = 7, b"", [], None, None, {}
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind not in (1, 4):
            continue
        record, parts = wandb_internal_pb2.Record.FromString(parts), b""
        match record.WhichOneof("record_type"):
            case "history":
                items = {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item
                }
                history.append(items)
            case "run":
                run = record.run
            case "metric":
                axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
            case "exit":
                exit_code = record.exit.exit_code
    return history, run, exit_code, axes
