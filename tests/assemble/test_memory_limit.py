"""Runs with little memory, through the command line: budgets that are found, and updates that shrink.

The limit is a bound on a process's address space, so each run is a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from tests.models.zoo import zoo_policy

from atrium.assemble.budget import _key
from atrium.assemble.fitting import changed
from atrium.base.errors import ConfigError
from atrium.base.metrics import is_repeatable
from atrium.config.compose import compose
from atrium.config.machine import Machine, resolve_auto
from atrium.config.resume import resumed
from atrium.models.settings import LoraSettings
from atrium.train.update.forward import PolicyForward

SHAPE = (
    "debug=tiny_steps",
    "num_steps=1",
    "rollout.num_prompts=96",  # an update needs more than twice the 64 MB, so the exact bytes do not matter
    "rollout.group_size=8",
    "rollout.max_new_tokens=48",
    "optimizer.num_minibatches=1",
    "model.hidden_size=128",
    "model.feed_forward_size=384",
    "tracking=none",
    "tracking.progress=off",
    "tracking.figures=false",
)
ALL = 16_384


def _run(folder, *overrides, command=("train",)):
    # With a fixed threshold, glibc gives the memory of freed tensors back; room that its heap keeps, which
    # grows and shrinks by chance, would not count against the limit.
    heap = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, "-m", "atrium", *command, *overrides],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | heap,
        capture_output=True,
        text=True,
        timeout=500,
    )
    (path,) = folder.glob("*/*/config.json")
    return done, path.parent


def _metrics(run):
    return _all_metrics(run)[-1]


def _all_metrics(run):
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _budget(run):
    return json.loads((run / "config.json").read_text(encoding="utf-8"))["compute"]["micro_batch_tokens"]


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_where_memory_lacks_a_run_shrinks_to_the_same_gradient(tmp_path):
    wide = [*SHAPE, f"compute.micro_batch_tokens={ALL}"]
    done, plenty = _run(tmp_path / "plenty", *wide, f"runs_dir={tmp_path / 'plenty'}")
    assert done.returncode == 0, done.stdout + done.stderr
    limited = ["compute.memory_limit_mb=64", f"runs_dir={tmp_path / 'scarce'}"]
    done, scarce = _run(tmp_path / "scarce", *wide, "compute.on_oom=shrink", *limited)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "repeated, and from now on micro-batches have at most" in (scarce / "log.txt").read_text()
    expected, found = _metrics(plenty), _metrics(scarce)
    for name in ("optimizer/grad_norm", "objective/loss", "policy/entropy"):
        if name in expected:
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert found["optimizer/grad_norm"] > 0.0


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """The folder of runs, and a run of three steps whose budget was found by trying what fits."""
    folder = tmp_path_factory.mktemp("searched")
    limited = ["compute.memory_limit_mb=64", "num_steps=3", "checkpoint.keep_last=9"]
    done, run = _run(folder, *SHAPE, *limited, f"runs_dir={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, run


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_budget_is_found_and_stored(searched):
    folder, run = searched
    found = _budget(run)
    assert 64 < found < ALL
    assert f"micro-batches of {found} tokens, found by trying what fits" in (run / "log.txt").read_text()
    (kept,) = json.loads((folder / ".cache" / "micro_batch_tokens.json").read_text()).values()
    assert kept == found


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_run_goes_on_within_the_budget_that_was_found_without_another_search(searched, tmp_path):
    _, run = searched
    copy = tmp_path / "b" / run.parent.name / run.name
    shutil.copytree(run, copy)
    done, _ = _run(tmp_path / "b", str(copy), "--from-step", "1", command=("train", "--resume"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert _budget(copy) == _budget(run)
    assert (copy / "log.txt").read_text().count("by trying what fits") == 1
    # Other runs' findings lie beside it, and are neither read nor written.
    assert not (tmp_path / "b" / ".cache" / "micro_batch_tokens.json").exists()
    found, expected = (
        [
            {name: value for name, value in step.items() if is_repeatable(name)} | {"time": 0}
            for step in _all_metrics(folder)
        ]
        for folder in (copy, run)
    )
    assert found == expected
    assert len(found) == 3
    weights = [
        load_file(folder / "checkpoints" / "step-000003" / "policy" / "model.safetensors")
        for folder in (copy, run)
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_activations_are_computed_again_where_a_row_does_not_fit_otherwise(tmp_path):
    # Twelve blocks keep some 110 MB of a row of 800 tokens, and 5 MB where they keep their inputs.
    deep = [
        *SHAPE, "model.num_layers=12", "model.context_length=1024", "rollout.max_new_tokens=800",
        "rollout.num_prompts=2", "rollout.group_size=2",
    ]  # fmt: skip
    done, run = _run(tmp_path, *deep, "compute.memory_limit_mb=96", f"runs_dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads((run / "config.json").read_text(encoding="utf-8"))["compute"]
    assert stored["recompute_activations"] is True
    assert stored["micro_batch_tokens"] >= 800
    assert "updates recompute activations" in (run / "log.txt").read_text()
    assert _metrics(run)["optimizer/num_updates"] == 1


@pytest.mark.parametrize(
    ("compute", "kind", "expected"),
    [
        ({"device": "cpu"}, "tiny", 16384),
        ({"device": "cpu"}, "hub", 4096),
        ({"device": "cpu", "memory_limit_mb": 500}, "tiny", "auto"),
        ({"device": "cuda"}, "hub", "auto"),
        ({"device": "cuda"}, "tiny", 16384),
        ({"device": "cuda", "num_processes": 2}, "hub", "auto"),
    ],
)
def test_a_budget_is_a_rule_unless_memory_decides(compute, kind, expected):
    machine = Machine(num_cores=2, requested_threads=1, has_cuda=True)
    data = {"model": {"kind": kind}, "compute": {**compute, "micro_batch_tokens": "auto"}}
    assert resolve_auto(data, machine)["compute"]["micro_batch_tokens"] == expected


def test_a_plan_before_the_budget_is_found_counts_the_largest():
    config = compose(["compute.memory_limit_mb=500"])
    assert config.compute.micro_batch_tokens == "auto"
    assert config.compute.max_micro_batch_tokens == ALL


def test_a_continued_run_keeps_the_budget_that_was_found(tmp_path):
    stored = compose(["compute.memory_limit_mb=500", "compute.micro_batch_tokens=5000"])
    folder = tmp_path / "experiment" / "run"
    for overrides in ([], ["compute.micro_batch_tokens=auto", "compute.memory_limit_mb=500"]):
        assert resumed(stored, folder, overrides).compute.micro_batch_tokens == 5000
    with pytest.raises(ConfigError, match=r"the run began with compute\.micro_batch_tokens=5000"):
        resumed(stored, folder, ["compute.micro_batch_tokens=6000"])


def _budget_key(**sections):
    config = changed(compose(["model=tiny"]), **sections)
    forward = PolicyForward(zoo_policy("llama").model, temperature=1.0)
    return _key(config, SimpleNamespace(forward=forward), 40)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("compute", "offload", True),
        ("compute", "head_kernel", "triton"),
        ("compute", "head_dtype", "float32"),
        ("compute", "residual_dtype", "model"),
        ("compute", "compile", True),
        ("compute", "flash_attention", 3),
        ("rollout", "lag", 1),
        ("model", "lora", LoraSettings(rank=4, alpha=8.0)),
    ],
)
def test_a_budget_that_was_found_with_another_use_of_memory_is_not_reused(section, name, value):
    assert _budget_key(**{section: {name: value}}) != _budget_key()


def test_a_budget_is_reused_by_runs_that_differ_in_what_takes_no_memory():
    other = {"compute": {"num_threads": 7, "profile_step": 2}, "optimizer": {"learning_rate": 0.5}}
    assert _budget_key(**other) == _budget_key()
