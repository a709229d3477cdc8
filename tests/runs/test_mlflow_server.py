"""A real MLflow server: its pages show a run, and one that is killed while a run goes on loses nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from tests.chromium import chromium

from atrium.cli.app import main
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server(folder, port):
    """The server over a database in the folder; whatever happens, it is killed at the end."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--default-artifact-root", str(folder / "artifacts")]
    with (folder / "server.log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, cwd=folder)
    try:
        deadline = time.monotonic() + 240
        while not is_healthy(port):
            assert process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.read() == b"OK"
    except (urllib.error.URLError, OSError):
        return False


def text_of_page(address, wanted):
    """What Chromium shows at an address once a text is there."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.goto(address, timeout=240_000)
        page.get_by_text(wanted).first.wait_for(timeout=240_000)
        return page.inner_text("body")


@pytest.mark.timeout(1200)
def test_its_pages_show_a_run_and_killing_it_meanwhile_loses_nothing(tmp_path, port, monkeypatch, capsys):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    folder = RunFolder.create(tmp_path / "runs", "study", "atr", 0)
    folder.write_config(
        {"seed": 0, "algorithm": {"name": "atr"}, "divergence": {"kind": "kl3"}, "tracking": {}}
    )
    tracker = RunFolderWriter(folder)
    tracker.begin(step=0, num_steps=20)
    address = f"http://127.0.0.1:{port}"
    sync = ["sync", folder.path.name, "--to", "mlflow", "--uri", address]
    sync += ["--runs-dir", str(tmp_path / "runs")]

    for step in range(1, 11):
        tracker.step(step, {"rollout/reward": step / 100})
    with server(tmp_path, port):
        assert main(sync) == 0
    capsys.readouterr()
    for step in range(11, 21):
        tracker.step(step, {"rollout/reward": step / 100})
    assert main(sync) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{folder.name}: mlflow: ")
    assert said.count("\n") == 1
    tracker.end(RunState.FINISHED)

    with server(tmp_path, port):
        assert main(sync) == 0
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=address)
        experiment = client.get_experiment_by_name("study").experiment_id
        [run] = client.search_runs([experiment], f"tags.`mlflow.runName` = '{folder.path.name}'")
        history = client.get_metric_history(run.info.run_id, "rollout/reward")
        assert [(one.step, one.value) for one in history] == [(step, step / 100) for step in range(1, 21)]
        assert run.info.status == "FINISHED"
        shown = text_of_page(f"{address}/#/experiments/{experiment}/runs/{run.info.run_id}", "rollout/reward")
    assert folder.path.name in shown
    assert "Finished" in shown
