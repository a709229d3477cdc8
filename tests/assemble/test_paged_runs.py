"""Runs whose completions are sampled by transformers' continuous batching."""

from __future__ import annotations

import pytest

from atrium.cli import main
from atrium.errors import ConfigError
from atrium.metrics import MISMATCH_MAX, REWARD
from atrium.tracking.json_lines import read_json_lines

PAGED = ("rollout=transformers_paged", "rollout.max_new_tokens=16", "num_steps=3")


def steps_of(folder):
    return list(read_json_lines(folder.metrics_file).records)


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides",
    [(), ("rollout.lag=1", "rollout.overlap=true"), ("model.lora={rank: 4, alpha: 8}",)],
    ids=["plain", "overlapping", "lora"],
)
def test_a_run_trains_on_what_its_own_distribution_gave(runs, request, overrides):
    name = f"paged-{request.node.callspec.id}"
    steps = steps_of(runs.train(*PAGED, *overrides, f"experiment_name={name}"))
    assert len(steps) == 3
    assert max(step[MISMATCH_MAX.name] for step in steps) < 1e-4


@pytest.mark.full
def test_a_run_is_the_one_that_the_transformers_engine_gives(runs):
    paged = steps_of(runs.train(*PAGED, "experiment_name=with-pages"))
    plain = steps_of(runs.train(*PAGED[1:], "rollout=transformers", "experiment_name=without-pages"))
    for one, other in zip(paged, plain, strict=True):
        assert one[REWARD.name] == pytest.approx(other[REWARD.name], abs=1e-6)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.attention=flash_attention_2", "rollout.attention=flash_attention_2 computes in bfloat16"),
        ("rollout.context_length=16", "rollout.context_length=16 leaves no room for a prompt"),
    ],
)
def test_what_cannot_run_here_is_refused_in_one_line(tmp_path, capfd, override, message):
    assert main(["train", *PAGED, override, f"runs_dir={tmp_path}"]) == 2
    errors = capfd.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_a_setting_of_another_engine_is_refused(runs):
    with pytest.raises(ConfigError, match=r"rollout\.sleep_level"):
        runs.config(*PAGED, "rollout.sleep_level=1")
