"""Whole runs with real vLLM in this process: they learn, and weights are never stale."""

from __future__ import annotations

import os

import pytest
import torch
from tests.vllm.settings import SMALL

from atrium.assemble.graders import build_grader
from atrium.assemble.training import run_training
from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import (
    MISMATCH_KL,
    MISMATCH_MAX,
    MISMATCH_MEAN,
    REWARD,
    STALENESS,
)
from atrium.config.compose import compose
from atrium.runs.run_folder import RunFolder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

EXACT = 1e-4


def train(runs_dir, *overrides, base=SMALL):
    """The metrics of a run's steps, in order, and its folder."""
    lines = [*base, f"runs_dir={runs_dir}", *overrides]
    config = compose(lines)
    with build_grader(config.grader, config.model) as grader:
        folder = RunFolder(run_training(config, grader, lines))
    return list(read_json_lines(folder.metrics_file).records), folder


def test_twenty_five_steps_teach_the_policy_and_its_weights_always_arrive(tmp_path):
    steps, folder = train(tmp_path, "num_steps=25")
    assert len(steps) == 25
    assert steps[0][REWARD.name] < 0.2
    assert steps[-1][REWARD.name] > 0.9
    assert max(step[MISMATCH_MAX.name] for step in steps) < EXACT
    assert all(step[STALENESS.name] == 0.0 for step in steps)
    assert (folder.checkpoint_path(25) / "policy" / "model.safetensors").is_file()


def test_a_sampler_in_another_precision_is_measured_and_stays_below_its_bound(tmp_path):
    steps, _ = train(tmp_path, "num_steps=2", "compute.dtype=bfloat16")
    for step in steps:
        assert EXACT < step[MISMATCH_MEAN.name] < 0.1
        assert 0.0 < step[MISMATCH_KL.name] < 0.01


def test_a_run_leaves_no_process_and_no_process_group(tmp_path):
    import psutil

    this = psutil.Process(os.getpid())
    before = this.children(recursive=True)  # such as what earlier engines were forked from
    train(tmp_path, "num_steps=1")
    assert not torch.distributed.is_initialized()
    assert this.children(recursive=True) == before
