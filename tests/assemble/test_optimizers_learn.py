"""Optimisers with less state raise the reward of the built-in task as AdamW does, in a short form of it."""

from __future__ import annotations

import numpy as np
import pytest

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import REWARD
from atrium.cli import main

SHORT = (
    "num_steps=10",
    "rollout.num_prompts=24",
    "optimizer.num_minibatches=2",
    "optimizer.learning_rate=1e-3",
    "optimizer.num_warmup_steps=2",
    "model.warmup.num_clean_steps=250",
    "model.warmup.num_imperfect_steps=60",
    "dataset.max_operands=4",
    "dataset.num_validation=8",
    "dataset.num_test=8",
    "evaluation.every_num_steps=10",
    "evaluation.num_samples=2",
    "tracking=none",
    "tracking.figures=false",
    "tracking.progress=off",
)
KINDS = {
    "adamw": (),
    "adamw_8bit": ("optimizer=adamw_8bit",),
    "adamw_bf16": ("optimizer=adamw_bf16", "compute.dtype=bfloat16"),
}


def _rewards(runs_dir, kind):
    """The mean reward of each step."""
    named = [f"experiment_name={kind}", f"runs_dir={runs_dir}"]
    assert main(["train", *KINDS[kind], *SHORT, *named]) == 0
    (file,) = (runs_dir / kind).glob("*/metrics.jsonl")
    return np.array([step[REWARD.name] for step in read_json_lines(file).records])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder that all share a warm-up in, and AdamW's rewards."""
    runs_dir = tmp_path_factory.mktemp("runs")
    return runs_dir, _rewards(runs_dir, "adamw")


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["adamw_8bit", "adamw_bf16"])
def test_the_reward_rises_as_with_adamw(plain, kind):
    runs_dir, expected = plain
    found = _rewards(runs_dir, kind)
    gain = expected[-4:].mean() - expected[0]
    assert gain > 0.15
    # Prompts and draws are the same, so that problems that are hard by chance lower all alike.
    assert found[0] == pytest.approx(expected[0], abs=0.05)
    assert found[-4:].mean() - found[0] > 0.7 * gain
