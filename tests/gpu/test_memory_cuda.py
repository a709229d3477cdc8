"""On a CUDA device: budgets that are found, optimisers with less state, and the benchmarks of updates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import UPDATE_PEAK_MB
from atrium.cli import main

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODEL = (
    "model=qwen3_0_6b",
    "model.weights=random",
    "rollout=transformers",
    "debug=tiny_steps",
    "compute=cuda",
)
NUM_PARAMETERS = 596_049_920
"""Of Qwen3-0.6B, whose head is tied."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def _steps(folder, *overrides):
    """The metrics of every step of a run, each with a gradient."""
    assert main(["train", *MODEL, *overrides, "tracking=none", f"runs_dir={folder}"]) == 0
    (path,) = folder.glob("*/*/metrics.jsonl")
    steps = list(read_json_lines(path).records)
    assert all(step["optimizer/grad_norm"] > 0.0 for step in steps)
    return steps


def _trained(folder, *overrides):
    _steps(folder, *overrides)
    (path,) = folder.glob("*/*/config.json")
    return json.loads(path.read_text(encoding="utf-8"))["compute"]["micro_batch_tokens"]


def test_a_budget_is_found_and_less_memory_gives_a_smaller_one(tmp_path):
    shape = ["rollout.max_new_tokens=512", "rollout.group_size=32", "optimizer.num_minibatches=1"]
    plenty = _trained(tmp_path / "plenty", *shape)
    scarce = _trained(tmp_path / "scarce", *shape, "compute.memory_limit_mb=14000")
    assert 512 < scarce <= plenty <= 16_384


def test_state_in_main_memory_leaves_the_device_more_room_and_the_run_as_it_was(tmp_path):
    kept, moved = (
        _steps(tmp_path / value, "compute.micro_batch_tokens=4096", f"compute.offload={value}")
        for value in ("false", "true")
    )
    # The first step's second update stands on weights that the host has moved.
    assert moved[0]["optimizer/grad_norm"] == pytest.approx(kept[0]["optimizer/grad_norm"], rel=1e-2)
    saved_mb = kept[-1][UPDATE_PEAK_MB.name] - moved[-1][UPDATE_PEAK_MB.name]
    assert saved_mb > 7 * NUM_PARAMETERS / 2**20  # of the state's 8 bytes per weight


def test_activations_that_are_computed_again_leave_more_room_to_the_same_gradient(tmp_path):
    shape = ["rollout.max_new_tokens=512", "rollout.group_size=16", "compute.micro_batch_tokens=8192"]
    kept, again = (
        _steps(tmp_path / value, *shape, "num_steps=1", f"compute.recompute_activations={value}")
        for value in ("false", "true")
    )
    assert again[0]["optimizer/grad_norm"] == pytest.approx(kept[0]["optimizer/grad_norm"], rel=1e-2)
    assert again[0][UPDATE_PEAK_MB.name] < kept[0][UPDATE_PEAK_MB.name] - 1000


def test_activations_are_computed_again_by_themselves_where_a_row_lacks_memory(tmp_path):
    long = ["rollout.max_new_tokens=4096", "num_steps=1", "compute.memory_limit_mb=18000"]
    _steps(tmp_path, *long)
    (path,) = tmp_path.glob("*/*/config.json")
    assert json.loads(path.read_text(encoding="utf-8"))["compute"]["recompute_activations"] is True


@pytest.mark.parametrize("kind", ["adamw_8bit", "adamw_bf16"])
def test_optimisers_with_less_state_train(kind, tmp_path):
    assert _trained(tmp_path, f"optimizer={kind}") > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["loss_stage.py", "--repeats", "2", "--tokens", "512", "--width", "256", "--vocabularies", "4096"],
        ["update_throughput.py", "--repeats", "2", "--model", "qwen3_0_6b", "--completions", "16"],
    ],
    ids=["loss_stage", "update_throughput"],
)
def test_the_benchmarks_of_updates_run(arguments):
    done = subprocess.run(
        [
            sys.executable,
            BENCHMARKS / arguments[0],
            *arguments[1:],
            "--device",
            "cuda",
            "--dtype",
            "bfloat16",
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert json.loads(line)["device"] == torch.cuda.get_device_name()
