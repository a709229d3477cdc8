"""On a pretended GPU: whole runs sample, update, evaluate and save, by branches that a CPU never takes."""

from __future__ import annotations

import json
import math

import pytest
from tests.pretended.cuda import pretended_cuda

from atrium.base.metrics import GRAD_NORM, MISMATCH_MEAN, ROLLOUT_PEAK_MB, UPDATE_PEAK_MB
from atrium.cli import main

SMALL = (
    "debug=tiny_steps", "compute=cuda", "compute.dtype=bfloat16", "num_steps=2", "dataset.num_validation=4",
    "dataset.num_test=4", "rollout.max_new_tokens=16", "tracking=none",
)  # fmt: skip


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains with further settings: the directory of the run, and the GPU that it believed in."""
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)

    def train(*overrides):
        with pretended_cuda() as gpu:
            assert main(["train", *SMALL, *overrides, f"runs_dir={tmp_path}"]) == 0
        (path,) = tmp_path.glob("*/*/metrics.jsonl")
        steps = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        updates = [step for step in steps if GRAD_NORM.name in step]
        assert len(updates) == 2
        for step in updates:
            assert math.isfinite(step[GRAD_NORM.name])
            # What samples and what is trained are one module; beside rounding they agree.
            assert step[MISMATCH_MEAN.name] < 0.1
            assert step[ROLLOUT_PEAK_MB.name] > 0
            assert step[UPDATE_PEAK_MB.name] > 0
        assert gpu.waits
        return path.parent, gpu

    return train


@pytest.mark.full
def test_a_run_with_adapters_that_computes_activations_again_trains(trained):
    _, gpu = trained(
        "algorithm=rpg_ufkl",
        "model.lora={rank: 4, alpha: 8, target_modules: all_linear}",
        "compute.recompute_activations=true",
    )
    assert gpu.num_attentions > 0


@pytest.mark.full
def test_a_run_that_finds_its_micro_batches_and_keeps_its_state_in_main_memory_trains(trained):
    folder, gpu = trained(
        "compute.offload=true", "compute.micro_batch_tokens=auto", "compute.memory_limit_mb=4000"
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["compute"]["micro_batch_tokens"] > 0
    assert gpu.num_attentions > 0


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides",
    [
        ("divergence=state_kl",),
        ("rollout.lag=1",),
        ("compute.head_dtype=float32",),
        pytest.param(("compute.head_kernel=triton",), marks=pytest.mark.kernels),
        ("compute.compile=false", "optimizer.num_epochs=2", "compute.on_oom=shrink"),
        *(
            pytest.param((setting,), marks=pytest.mark.release)
            for setting in (
                "algorithm=rpg_ufkl",
                "optimizer=adamw_bf16",
                "compute.packing=false",
                "compute.residual_dtype=model",
                "compute.dtype=float32",
            )
        ),
    ],
    ids=" ".join,
)
def test_runs_with_other_parts_train(trained, overrides):
    trained(*overrides)
