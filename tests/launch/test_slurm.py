"""SLURM jobs: what would be submitted, what is submitted and followed, and real jobs without a cluster."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time

import psutil
import pytest

from atrium.base.json_lines import read_json_lines
from atrium.cli import main
from atrium.config.compose import compose
from atrium.launch.slurm import JobSettings, Submission
from atrium.launch.slurm_task import RunJob
from atrium.runs.find import list_runs
from atrium.runs.status import read_status

SLURM = ["compute=slurm", "compute.device=cpu"]


def test_the_script_asks_for_what_the_settings_say(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)
    code = main(
        [
            "train",
            "compute=slurm",
            "compute.num_processes=8",
            "compute.num_nodes=2",
            "compute.slurm.partition=gpu",
            "compute.slurm.account=lab",
            "compute.slurm.time_minutes=90",
            "compute.slurm.memory_gb=512",
            "compute.slurm.cpus_per_node=64",
            "compute.slurm.signal_lead_s=300",
            "compute.slurm.setup=[module load cuda]",
            "compute.slurm.extra={qos: high, exclusive: true}",
            f"runs_dir={tmp_path}",
            "--print-script",
        ]
    )
    script = capsys.readouterr().out
    assert code == 0
    asked = set(re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE))
    assert asked >= {
        "nodes=2",
        "ntasks-per-node=1",
        "gpus-per-node=8",
        "partition=gpu",
        "account=lab",
        "time=90",
        "mem=512GB",
        "cpus-per-task=64",
        "signal=USR2@300",
        "requeue",
        "qos=high",
        "exclusive",
    }
    assert script.index("module load cuda") < script.index("srun ")
    assert f"{sys.executable} -u -m submitit.core._submit {tmp_path}" in script
    assert list(tmp_path.iterdir()) == []


def test_script_requests_the_gpus_of_servers_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)
    monkeypatch.setattr("atrium.engines.vllm_environment.installed_version", {"vllm": "0.32.0"}.get)
    processes = ("compute=slurm", "compute.num_nodes=2", "compute.num_processes=2")
    settings = (*processes, "rollout=vllm", "rollout.placement=server", "rollout.num_servers=12")
    assert main(["train", *settings, f"runs_dir={tmp_path}", "--print-script"]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --nodes=2" in script
    assert "#SBATCH --gpus-per-node=8" in script


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["compute.slurm.executor=local", "compute.num_nodes=2"], "compute.num_nodes must be 1"),
        (["compute.slurm.time_minutes=2"], "compute.slurm.signal_lead_s must be less than"),
        (["compute.slurm.partion=gpu"], "compute.slurm.partion"),
        (["compute.rendezvous=a:1", "compute.num_nodes=2"], "compute.rendezvous=a:1 has no effect"),
        ([], "srun is not installed on this machine"),
    ],
)
def test_a_wrong_job_is_refused_in_one_line(tmp_path, capsys, monkeypatch, settings, said):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["train", *SLURM, *settings, f"runs_dir={tmp_path}"]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Programs with the names of SLURM's: sbatch keeps the script, sacct says that its jobs run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "srun": "exit 0",
        "sbatch": f'cp "$1" {tmp_path}/script; echo Submitted batch job 12',
        "sacct": 'echo "JobID|State|NodeList"; for n in 0 1; do echo "12_$n|RUNNING|n1"; done',
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.full
def test_a_grid_is_one_array_that_is_followed_to_its_end(cluster, capsys):
    def end_jobs():
        while not list((cluster / "runs/.cache/slurm").glob("*/12_1_submitted.pkl")):
            time.sleep(0.02)
        [folder] = (cluster / "runs/.cache/slurm").glob("*")
        (folder / "run-1").write_text("runs/x/r1")
        (folder / "exit-0").write_text("0")
        (folder / "12_1_0_log.out").write_text("error: it broke\n")
        (folder / "exit-1").write_text("3")

    ending = threading.Thread(target=end_jobs, daemon=True)
    ending.start()
    grid = [
        "train",
        "--multirun",
        *SLURM,
        "compute.slurm.max_parallel=1",
        "seed=0,1",
        f"runs_dir={cluster}/runs",
        "experiment_name=grid",
    ]
    assert main(grid) == 3
    ending.join(100)
    said = capsys.readouterr()
    assert "submitted job 12_0, its log is" in said.out
    assert "job 12_0 ended\n" in said.out
    assert "job 12_1 ended with exit code 3: it broke (run runs/x/r1)" in said.out
    assert "a job failed" in said.err
    assert "#SBATCH --array=0-1%1" in (cluster / "script").read_text()


def test_job_that_a_signal_ended_gives_the_exit_code_of_a_shell_beside_one_that_succeeded(
    cluster, monkeypatch
):
    monkeypatch.setattr("atrium.launch.slurm._POLL_S", 0.0)
    settings = JobSettings(slurm=compose(SLURM).compute.slurm, num_nodes=1, num_gpus_per_node=0)
    submission = Submission([("seed=0",), ("seed=1",)], settings, cluster, lambda line: None)
    (submission.folder / "exit-0").write_text("-9")
    (submission.folder / "exit-1").write_text("0")
    assert submission.follow() == 137


def test_what_waits_for_a_job_on_disk_is_a_command_line():
    task = RunJob(("seed=1",), ("--plugin", "/mine.py"), "/r", "/e")
    task._process = object()
    assert task.__getstate__() == {
        "arguments": ("seed=1",),
        "flags": ("--plugin", "/mine.py"),
        "run_file": "/r",
        "exit_file": "/e",
    }


def test_a_job_that_is_queued_again_goes_on_with_its_run(tmp_path):
    flags = ("--plugin", "/mine.py")
    task = RunJob(("seed=1", "num_steps=3"), flags, str(tmp_path / "run"), str(tmp_path / "exit"))
    assert task._arguments() == ["seed=1", "num_steps=3", *flags]
    (tmp_path / "run").write_text("/runs/a/b")
    assert task._arguments() == ["--resume", "/runs/a/b", *flags]


def test_a_stored_job_may_be_continued_without_a_cluster(tmp_path):
    from atrium.config.resume import resumed

    stored = compose([*SLURM, "compute.num_processes=2", "compute.slurm.partition=gpu"])
    folder = tmp_path / "runs" / "x" / "y"
    assert resumed(stored, folder, ["compute.slurm=null"]).compute.slurm is None
    moved = resumed(stored, folder, ["compute.slurm.partition=long"]).compute.slurm
    assert (moved.partition, moved.executor) == ("long", "slurm")


def _tasks(pid):
    try:
        children = psutil.Process(pid).children(recursive=True)
        return [child for child in children if "submitit.core._submit" in child.cmdline()]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_job_of_two_seeds_runs_for_real_and_goes_on_after_it_was_preempted(tmp_path):
    runs_dir, num_steps = tmp_path / "runs", 6
    settings = [
        "debug=tiny_steps",
        "tracking.figures=false",
        f"num_steps={num_steps}",
        "checkpoint.every_num_steps=1",
        "experiment_name=job",
        f"runs_dir={runs_dir}",
    ]
    command = [sys.executable, "-m", "atrium", "train", "--multirun", "seed=0,1", *settings]
    command += [*SLURM, "compute.slurm.executor=local"]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "CI": ""})
    preempted = False
    deadline = time.monotonic() + 600
    while process.poll() is None:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
        runs = list_runs(runs_dir) if runs_dir.is_dir() else []
        begun = [run for run in runs if run.checkpoint_steps() and read_status(run.status_file).step < 5]
        if begun and not preempted:
            wanted = begun[0]
            for task in _tasks(process.pid):
                task.send_signal(signal.SIGUSR2)
            preempted = True
            interrupted = wanted
    said = log.read_text()
    assert process.returncode == 0, said
    assert preempted
    runs = list_runs(runs_dir)
    assert sorted(int(read_json_lines(run.metrics_file).records[-1]["step"]) for run in runs) == [6, 6]
    assert len(runs) == 2, "a job that is queued again continues its run"
    assert all(read_status(run.status_file).state == "finished" for run in runs)
    steps = [record["step"] for record in read_json_lines(interrupted.metrics_file).records]
    assert steps == list(range(1, num_steps + 1))
    assert "resuming after step" in interrupted.log_file.read_text()


def test_a_multirun_of_slurm_jobs_and_local_runs_is_refused_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)
    assert main(["train", "--multirun", "compute=cpu,slurm", f"runs_dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert (
        "--multirun cannot mix SLURM jobs and local runs; use compute=slurm for all jobs or for none" in said
    )
    assert said.count("\n") == 1
