"""Whole runs on several ranks: equal to one process, resumed on other numbers of ranks, and killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.ranks.conftest import REPOSITORY, environment, run_ranks, torchrun

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import is_repeatable
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, read_status

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

NUM_STEPS = 4
SETTINGS = (
    "debug=tiny_steps",
    "algorithm=grpo_kl",
    "algorithm.reference.kind=every_num_steps",
    "algorithm.reference.num_steps=2",
    "rollout.max_new_tokens=24",
    "optimizer.learning_rate=0.01",
    # A gradient that is rounding alone (equal rewards) would else move weights by the learning rate.
    "optimizer.epsilon=1e-3",
    "tracking.figures=false",
    "tracking.progress=off",
    "checkpoint.keep_last=9",
    "compute.timeout_s=60",
)
ROUNDING = 1e-4
"""Float32: gradients of about 1 differ by 1e-6; eight updates multiply that by at most 0.01 / epsilon."""
DIFFERS = ("optimizer/num_computed_positions", "optimizer/padding_frac", "ranks/")


def train(num_ranks, *arguments):
    """Train to the end on so many ranks."""
    codes, said = run_ranks(num_ranks, "-m", "atrium", "train", *arguments)
    assert codes == [0] * num_ranks, said[-4000:]


def new_run(runs_dir, name, num_ranks, *more):
    """A finished run."""
    train(
        num_ranks,
        f"runs_dir={runs_dir}",
        f"experiment_name={name}",
        f"num_steps={NUM_STEPS}",
        *SETTINGS,
        *more,
    )
    (path,) = (runs_dir / name).iterdir()
    return RunFolder(path)


def resumed(folder, copy, *, step, num_ranks):
    """A copy of a run that goes on from a step's checkpoint, and its end."""
    shutil.copytree(folder.path, copy)
    train(num_ranks, "--resume", str(copy), "--from-step", str(step), f"runs_dir={copy.parents[1]}")
    return RunFolder(copy)


def tensors_of(folder, step=NUM_STEPS):
    """The checkpoint of a step: weights, optimiser and reference, by file and name."""
    path = folder.checkpoint_path(step)
    found = {}
    for file in ("policy/model", "optimizer", "optimizer-alike", "reference"):
        if (path / f"{file}.safetensors").exists():
            kind = file.partition("-")[0]
            found |= {
                f"{kind}:{name}": value for name, value in load_file(path / f"{file}.safetensors").items()
            }
    return found


def assert_equal(folder, expected):
    """The same steps, evaluations and final checkpoint, to rounding."""
    assert read_status(folder.status_file).state == RunState.FINISHED
    ours, theirs = (read_json_lines(run.metrics_file).records for run in (folder, expected))
    assert [record["step"] for record in ours] == [record["step"] for record in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        for key, value in other.items():
            if is_repeatable(key) and not key.startswith((*DIFFERS, "mismatch/")):
                assert mine[key] == pytest.approx(value, rel=1e-3, abs=1e-4), (mine["step"], key)
    ours, theirs = (read_json_lines(run.evaluations_file).records for run in (folder, expected))
    assert [_shown(record) for record in ours] == [_shown(record) for record in theirs]
    ours, theirs = tensors_of(folder), tensors_of(expected)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert (ours[name] - value).abs().max() < ROUNDING, name


def _shown(record):
    return (
        record["step"],
        record["benchmark"],
        record["results"]["mean_at_k"],
        record["results"]["num_tokens"],
    )


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def alone(runs_dir):
    return new_run(runs_dir, "one", 1)


@pytest.fixture(scope="module")
def together(runs_dir):
    return new_run(runs_dir, "two", 2)


def test_a_run_on_two_ranks_is_that_of_one_process_in_one_ordinary_folder(alone, together):
    assert_equal(together, alone)
    files = {path.name for path in together.path.iterdir()} - {path.name for path in alone.path.iterdir()}
    assert files == {"ranks"}
    assert {path.name for path in (together.path / "ranks").iterdir()} >= {
        "rank-0.jsonl",
        "rank-1.jsonl",
        "rank-1.log",
    }
    for rank in range(2):
        lines = (together.path / "ranks" / f"rank-{rank}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, NUM_STEPS + 1))


def test_what_two_ranks_saved_is_verified_before_they_go_on(together, runs_dir):
    copy = RunFolder(shutil.copytree(together.path, runs_dir / "resumed" / "flipped"))
    file = copy.checkpoint_path(NUM_STEPS) / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    before = copy.metrics_file.read_bytes()
    further = (f"runs_dir={runs_dir}", f"num_steps={NUM_STEPS + 1}")
    command = torchrun(2, "-m", "atrium", "train", "--resume", str(copy.path), *further)
    done = subprocess.run(
        command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True, timeout=600
    )
    assert done.returncode != 0
    assert (
        f"step-{NUM_STEPS:06d} is damaged (optimizer.safetensors changed after it was written" in done.stderr
    )
    assert "--from-step " in done.stderr
    assert copy.metrics_file.read_bytes() == before


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_a_run_that_two_ranks_saved_goes_on_alike_on_another_number(num_ranks, together, runs_dir):
    folder = resumed(together, runs_dir / "resumed" / f"on-{num_ranks}", step=2, num_ranks=num_ranks)
    assert_equal(folder, together)


def test_a_run_that_one_process_saved_goes_on_alike_on_two_ranks(alone, runs_dir):
    assert_equal(resumed(alone, runs_dir / "resumed" / "from-1", step=2, num_ranks=2), alone)


@pytest.mark.release
def test_adapters_on_four_ranks_in_two_replicas_are_those_of_one_process_and_resume(runs_dir):
    settings = ("model.lora={rank: 4, alpha: 8}",)
    alone = new_run(runs_dir, "adapted", 1, *settings)
    together = new_run(runs_dir, "adapted-in-replicas", 4, *settings, "compute.num_shards=2")
    assert_equal(together, alone)
    adapters = [load_file(adapter_of(folder)) for folder in (alone, together)]
    assert adapters[0].keys() == adapters[1].keys()
    for name, value in adapters[0].items():
        assert (adapters[1][name] - value).abs().max() < ROUNDING, name
    assert_equal(resumed(alone, runs_dir / "resumed" / "adapted", step=2, num_ranks=2), alone)


def adapter_of(folder):
    """The adapters of a run's last checkpoint."""
    return folder.checkpoint_path(NUM_STEPS) / "policy" / "adapter" / "adapter_model.safetensors"


@pytest.mark.release
def test_bfloat16_weights_on_two_ranks_resume_where_they_were(runs_dir):
    settings = ("optimizer=adamw_bf16", "compute.dtype=bfloat16", "optimizer.learning_rate=0.001")
    whole = new_run(runs_dir, "rounded", 2, *settings)
    weights = {name: one for name, one in tensors_of(whole).items() if name.startswith("policy")}
    assert {one.dtype for one in weights.values()} == {torch.bfloat16}
    assert_equal(resumed(whole, runs_dir / "resumed" / "rounded", step=2, num_ranks=2), whole)


def test_a_killed_rank_ends_the_run_in_bounded_time_with_its_cause_and_the_run_resumes(runs_dir, together):
    process, folder = _begun(runs_dir, "killed")
    time.sleep(random.Random(0).uniform(0.0, 0.5))
    os.kill(_pid_of_rank(process, 1), signal.SIGKILL)
    _, said = process.communicate(timeout=600)
    assert process.returncode != 0
    status = read_status(folder.status_file)
    assert status.state == RunState.FAILED, said[-2000:]
    assert "rank 1 exited" in status.error
    train(2, "--resume", str(folder.path), f"runs_dir={runs_dir}")
    assert_equal(folder, together)


def test_a_signal_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(runs_dir, together):
    process, folder = _begun(runs_dir, "preempted")
    os.kill(_pid_of_rank(process, 1), signal.SIGTERM)
    _, said = process.communicate(timeout=600)
    status = read_status(folder.status_file)
    assert status.state == RunState.INTERRUPTED, said[-2000:]
    assert 1 <= status.step < NUM_STEPS
    assert folder.checkpoint_path(status.step).exists()
    for rank in range(2):
        lines = (folder.path / "ranks" / f"rank-{rank}.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == status.step
    train(2, "--resume", str(folder.path), f"runs_dir={runs_dir}")
    assert_equal(folder, together)


def _begun(runs_dir, name):
    """torchrun with two ranks whose run has recorded a step, and the run directory."""
    settings = [*SETTINGS, f"runs_dir={runs_dir}", f"experiment_name={name}", f"num_steps={NUM_STEPS}"]
    process = subprocess.Popen(
        torchrun(2, "-m", "atrium", "train", *settings),
        env=environment(), cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, _wait_for_step(process, runs_dir / name)


def _pid_of_rank(process, rank):
    children = psutil.Process(process.pid).children()
    return next(child.pid for child in children if _rank_of(child) == str(rank))


def _wait_for_step(process, parent):
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()[-4000:]
        for path in parent.glob("*"):
            folder = RunFolder(path)
            if folder.metrics_file.exists() and read_json_lines(folder.metrics_file).records:
                return folder
        time.sleep(0.02)
    raise AssertionError("the run records no step")


def _rank_of(process):
    try:
        return process.environ().get("RANK")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
