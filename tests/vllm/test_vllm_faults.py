"""Runs with real vLLM that dies or hangs: one line, a record that says so, a checkpoint to resume from."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest
import torch
from tests.vllm.settings import SMALL
from tests.vllm.test_vllm_runs import train

from atrium.assemble.graders import build_grader
from atrium.assemble.training import run_training
from atrium.base.errors import EngineError
from atrium.base.json_lines import read_json_lines
from atrium.config.compose import from_json
from atrium.config.resume import resumed
from atrium.engines import vllm_engine
from atrium.runs.run_folder import RunFolder
from atrium.train.checkpoint.checkpoint import latest_checkpoint
from atrium.train.collect import RolloutCollector

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

FAULTY = ("num_steps=4", "checkpoint.every_num_steps=1", "rollout.num_prompts=4", "rollout.max_new_tokens=8")


def only_run(runs_dir):
    (path,) = (runs_dir / "quickstart").iterdir()
    return RunFolder(path)


def status_of(folder):
    return json.loads((folder.path / "status.json").read_text())


def test_an_engine_that_dies_in_a_step_leaves_a_checkpoint_to_go_on_from(tmp_path, monkeypatch):
    """vLLM's own step fails in the middle of the completions of training step 3."""
    collect, start, training_step = RolloutCollector.collect, vllm_engine.start_vllm, [0]

    def collect_and_say(self, step, *arguments):
        training_step[0] = step
        return collect(self, step, *arguments)

    def start_what_will_fail(*arguments):
        engine = start(*arguments)
        step, calls = engine.step, iter(range(10**6))

        def failing():
            if training_step[0] == 3 and next(calls) == 2:
                raise RuntimeError("a worker\nis gone")
            return step()

        engine.step = failing
        return engine

    with monkeypatch.context() as patch:
        patch.setattr(RolloutCollector, "collect", collect_and_say)
        patch.setattr(vllm_engine, "start_vllm", start_what_will_fail)
        with pytest.raises(EngineError, match=r"a decoding step of vLLM\): RuntimeError: a worker is gone"):
            train(tmp_path, *FAULTY)
    folder = only_run(tmp_path)
    status = status_of(folder)
    assert status["state"] == "failed"
    assert "a decoding step of vLLM" in status["error"]
    assert not torch.distributed.is_initialized()
    assert psutil.Process().children(recursive=True) == []
    assert latest_checkpoint(folder.checkpoints_dir).state.step == 2
    stored = from_json(folder.config_file.read_text())
    with build_grader(stored.grader, stored.model) as grader:
        run_training(resumed(stored, folder.path, []), grader)
    assert [record["step"] for record in read_json_lines(folder.metrics_file).records] == [1, 2, 3, 4]
    assert status_of(folder)["state"] == "finished"


HANGING = """
import sys, time
from atrium.assemble.graders import build_grader
from atrium.assemble.training import run_training
from atrium.config.compose import compose
from atrium.engines import vllm_engine
from atrium.train.collect import RolloutCollector

collect, start, engines = RolloutCollector.collect, vllm_engine.start_vllm, []

def start_and_keep(*arguments):
    engines.append(start(*arguments))
    return engines[0]

def hang_in_step_two(self, number, *arguments):
    if number == 2:
        engines[0].step = lambda: time.sleep(600)
    return collect(self, number, *arguments)

vllm_engine.start_vllm = start_and_keep
RolloutCollector.collect = hang_in_step_two
config = compose(sys.argv[1:])
with build_grader(config.grader, config.model) as grader:
    run_training(config, grader, sys.argv[1:])
"""


def test_an_engine_that_hangs_ends_the_run_which_says_what_it_waited_for(tmp_path):
    overrides = [*SMALL, f"runs_dir={tmp_path}", *FAULTY, "rollout.step_timeout_s=20"]
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, *overrides],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    waited = "gave up waiting for a decoding step of vLLM after 20 s"
    assert waited in errors
    assert "Traceback" not in errors
    folder = only_run(tmp_path)
    status = status_of(folder)
    assert status["state"] == "failed"
    assert waited in status["error"]
    assert (folder.checkpoint_path(1) / "policy" / "model.safetensors").is_file()
    left = [one for one in psutil.process_iter(["pid"]) if _session_of(one.pid) == process.pid]
    psutil.wait_procs(left, timeout=20)
    assert [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []


def _session_of(pid):
    try:
        return os.getsid(pid)
    except OSError:
        return None
