"""What is refused before anything is started: counts that do not fit, GPUs that are missing or mixed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from atrium.assemble import launching
from atrium.assemble.ranks import joined_ranks
from atrium.base.errors import ConfigError, RunFolderError
from atrium.cli import main
from atrium.config.compose import compose
from atrium.launch import gpus
from atrium.models.settings import TinySettings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["compute.num_processes=3"], "must divide rollout.num_prompts=64"),
        (["compute=multi_node"], "compute.rendezvous must be set with compute.num_nodes=2"),
        (
            ["compute.rendezvous=here:1"],
            "compute.rendezvous=here:1 has no effect, since a single node needs no rendezvous",
        ),
        (["compute.rendezvous=here", "compute.num_nodes=2"], "compute.rendezvous"),
        (
            ["compute.num_nodes=2", "compute.rendezvous=8.8.8.8:29500"],
            "compute.rendezvous=8.8.8.8:29500: 8.8.8.8 is a public address",
        ),
        (
            ["compute.num_nodes=2", "compute.rendezvous=0.0.0.0:29500"],
            "compute.rendezvous=0.0.0.0:29500: 0.0.0.0 means all addresses of the machine",
        ),
        (
            ["compute.num_nodes=2", "compute.rendezvous=0:29500"],
            "compute.rendezvous=0:29500: 0.0.0.0 means all addresses of the machine",
        ),
        (["compute.num_nodes=2", "compute.rendezvous=localhost:99999"], "must be between 1 and 65535"),
        (["compute.allow_public_rendezvous=true"], "has no effect, since a single node needs no rendezvous"),
        (["compute.num_processes=0"], "compute.num_processes must be"),
        (["compute.timeout_s=0"], "compute.timeout_s must be"),
    ],
)
def test_wrong_processes_are_one_line(tmp_path, capsys, settings, said):
    assert main(["train", *settings, "debug=null", f"runs_dir={tmp_path}"]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.rglob("status.json"))


@pytest.mark.parametrize(
    "settings",
    [
        ["optimizer=adamw_8bit"],
        ["compute.on_oom=shrink"],
    ],
    ids=lambda settings: settings[0].partition("=")[0],
)
def test_what_one_process_has_alone_is_refused_to_several_however_they_are_started(settings, monkeypatch):
    config = compose(settings)
    with pytest.raises(ConfigError) as typed:
        compose([*settings, "compute.num_processes=2"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as started, joined_ranks(config):
        pass
    assert str(started.value) == str(typed.value)
    assert "a single process" in str(typed.value)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """What the driver says of three GPUs, the last of another kind; CUDA_VISIBLE_DEVICES names all."""
    for number, model in enumerate(("H100", "H100", "A100")):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        text = f"Model: \t\t NVIDIA {model}\nIRQ: 1\nDevice Minor: \t {number}\n"
        (folder / "information").write_text(text)
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)


def on_gpus(num_processes, *more):
    processes = ["compute.device=cuda", f"compute.num_processes={num_processes}"]
    return compose([*processes, "rollout.num_prompts=12", *more])


def test_a_node_with_too_few_gpus_is_refused(driver):
    with pytest.raises(ConfigError, match=r"the processes require 4 GPUs, but this machine has 3; lower"):
        launching.check_node(on_gpus(4))


def test_servers_of_a_node_take_gpus_of_their_own(driver):
    served = ("rollout=vllm", "rollout.placement=server", "rollout.num_servers=2")
    launching.check_node(on_gpus(1, *served))
    launching.check_node(on_gpus(2, *served, "rollout.devices=[2,2]"))
    for devices in ([], ["rollout.devices=[2,3]"]):
        with pytest.raises(
            ConfigError, match="the processes and their servers require 4 GPUs, but this machine has 3"
        ):
            launching.check_node(on_gpus(2, *served, *devices))


def test_servers_are_counted_before_a_model_is_loaded(driver, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("atrium.engines.vllm_environment.installed_version", {"vllm": "0.32.0"}.get)
    served = ["rollout=vllm", "rollout.placement=server", "rollout.num_servers=3"]
    assert main(["train", f"runs_dir={tmp_path / 'runs'}", "compute.device=cuda", *served]) == 2
    said = capfd.readouterr()
    assert "the processes and their servers require 4 GPUs, but this machine has 3" in said.err
    assert "compute: cuda" not in said.out  # what is said before torch is loaded
    assert not list((tmp_path / "runs").glob("[!.]*"))


def test_mixed_gpus_are_refused_by_name(driver, monkeypatch):
    with pytest.raises(ConfigError, match="evenly among NVIDIA A100, NVIDIA H100"):
        launching.check_node(on_gpus(3))
    launching.check_node(on_gpus(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    with pytest.raises(ConfigError, match="NVIDIA A100, NVIDIA H100"):
        launching.check_node(on_gpus(2))


def test_a_run_that_another_process_trains_is_left_alone(tmp_path):
    config = compose([f"runs_dir={tmp_path}", "compute.num_processes=2"])
    folder = launching.begun_run(config, ["compute.num_processes=2"])
    before = folder.config_file.read_bytes()
    resumed = config.model_copy(update={"resume": str(folder.path), "num_steps": 7})
    with folder.lock(), pytest.raises(RunFolderError, match="in use"):
        launching.begun_run(resumed, [])
    assert folder.config_file.read_bytes() == before
    assert launching.begun_run(resumed, []).path == folder.path
    assert b'"num_steps": 7' in folder.config_file.read_bytes()


def test_a_rank_and_a_single_process_start_nothing(monkeypatch):
    assert launching.is_started_here(compose([]))
    several = compose(["compute.num_processes=2"])
    assert not launching.is_started_here(several)
    assert not launching.is_started_here(compose(["compute.max_restarts=1"]))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launching.is_started_here(several)


@pytest.mark.parametrize("command", [["evaluate", "model=tiny"], ["sweep", "delta", "budget=tiny"]])
@pytest.mark.parametrize("setting", ["compute.num_processes=2", "compute=slurm"])
def test_commands_of_one_process_refuse_settings_of_several(tmp_path, capsys, monkeypatch, command, setting):
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)
    assert main([*command, setting, f"runs_dir={tmp_path}"]) == 2
    errors = capsys.readouterr().err
    assert "applies only to `atrium train`" in errors
    assert errors.count("\n") == 1


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_loaded(tmp_path, capsys):
    config = compose([f"runs_dir={tmp_path}", "model=tiny", "experiment_name=a"])
    folder = launching.begun_run(config, [])
    policy = folder.checkpoint_path(3) / "policy"
    policy.mkdir(parents=True)
    stored = TinySettings(hidden_size=4096).architecture
    (policy / "config.json").write_text(json.dumps(stored))
    assert main(["train", "--resume", str(folder.path)]) == 2
    errors = capsys.readouterr().err
    assert "belongs to another model, whose hidden_size is 4096 instead of 64" in errors
    assert errors.count("\n") == 1


def test_a_pipe_in_place_of_a_ranks_log_is_one_line_and_nobody_waits_for_it(tmp_path):
    (tmp_path / "ranks").mkdir()
    os.mkfifo(tmp_path / "ranks" / "rank-1.log")
    done = subprocess.run(
        [sys.executable, "-m", "atrium.cli.rank", tmp_path],
        env={**os.environ, "RANK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "rank-1.log: cannot write the output of rank 1" in done.stderr
