"""Every shipped algorithm trains: three steps of the debug model with its own divergence and regularizer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import CATALOGUE
from atrium.train.checkpoint.checkpoint import latest_checkpoint

FILES = (Path(__file__).resolve().parents[2] / "conf" / "algorithm").glob("*.yaml")
PRESETS = sorted({path.stem for path in FILES} - {"gvpo_offpolicy"})  # needs stored rollouts: `test_bank`


JUDGE_CORRECTNESS = ("dapo", "eighty_twenty", "fipo")
"""Their groups train where some answers are right and some wrong; the debug model's are all wrong."""


@pytest.mark.full
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_for_three_steps(runs, preset):
    folder = runs.train(
        f"algorithm={preset}",
        f"experiment_name=preset-{preset}",
        "evaluation.every_num_steps=3",
        "checkpoint.every_num_steps=3",
        *(["algorithm.group_filter.judge=reward"] if preset in JUDGE_CORRECTNESS else []),
    )
    records = read_json_lines(folder.metrics_file).records
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        named = {name: value for name, value in record.items() if name not in ("step", "time")}
        assert set(named) <= set(CATALOGUE)
        assert all(math.isfinite(value) for value in named.values()), named
    updates = sum(record.get("optimizer/num_updates", 0) for record in records)
    assert updates > 0
    checkpoint = latest_checkpoint(folder.checkpoints_dir)
    assert (checkpoint.state.step, checkpoint.state.weight_version) == (3, updates)
