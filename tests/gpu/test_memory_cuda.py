"""On a CUDA device: budgets that are found, optimisers with less state, and the benchmarks of updates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atrium.cli import main
from atrium.tracking.json_lines import read_json_lines

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODEL = (
    "model=qwen3_0_6b",
    "model.weights=random",
    "rollout=transformers",
    "debug=tiny_steps",
    "compute=cuda",
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def _trained(folder, *overrides):
    assert main(["train", *MODEL, *overrides, "tracking=none", f"runs_dir={folder}"]) == 0
    (path,) = folder.glob("*/*/config.json")
    steps = read_json_lines(path.parent / "metrics.jsonl").records
    assert all(step["optimizer/grad_norm"] > 0.0 for step in steps)
    return json.loads(path.read_text(encoding="utf-8"))["compute"]["micro_batch_tokens"]


def test_a_budget_is_found_and_less_memory_gives_a_smaller_one(tmp_path):
    shape = ["rollout.max_new_tokens=512", "rollout.group_size=32", "optimizer.num_minibatches=1"]
    plenty = _trained(tmp_path / "plenty", *shape)
    scarce = _trained(tmp_path / "scarce", *shape, "compute.memory_limit_mb=14000")
    assert 512 < scarce <= plenty <= 16_384


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
