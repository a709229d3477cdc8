"""Packed or padded updates where `compute.packing` is auto: decided once, recorded, reused, and said."""

from __future__ import annotations

import json

import pytest
from tests.models.zoo import zoo_policy
from tests.opened_run import opened_run
from tests.saved_policy import save_policy

from atrium.assemble.packing import settle_packing
from atrium.base.errors import ConfigError
from atrium.config.compose import compose, from_json
from atrium.config.resume import branched, resumed
from atrium.config.schema import BranchConfig
from atrium.runs.run_folder import RunFolder
from atrium.train.update.forward import PolicyForward

PADS = "updates compute padded rows (compute.packing=auto): PhimoeAttention masks not only later tokens"


@pytest.fixture
def settle(tmp_path):
    """Settle what a run of one of the zoo's models, with some settings, begins with."""

    def settled(model_type, *overrides, name="run"):
        path = tmp_path / "runs" / "experiment" / name
        path.mkdir(parents=True, exist_ok=True)
        folder, said = RunFolder(path), []
        config = compose(["model=smollm2_135m", "dataset=arithmetic", "rollout.group_size=8", *overrides])
        forward = PolicyForward(zoo_policy(model_type).model, temperature=1.0)
        run = settle_packing(opened_run(config, folder, said), forward, longest_prompt=20, longest=40)
        return run.config, folder, said

    return settled


@pytest.mark.parametrize(("model_type", "packs"), [("llama", True), ("phimoe", False)])
def test_the_choice_is_recorded_and_one_line_gives_reason_and_cost(settle, model_type, packs):
    settings, folder, [line] = settle(model_type)
    assert settings.compute.packing is packs
    assert json.loads(folder.config_file.read_text())["compute"]["packing"] is packs
    if packs:
        assert "states of rows of 40 tokens differ by" in line
    else:
        assert line.startswith(PADS)
        assert "(sliding_window=8)" in line
        assert "computed 8 times instead of once, which is up to 1.8 times as many tokens" in line


def test_a_continued_or_branched_run_keeps_the_choice(settle):
    settings, folder, _ = settle("phimoe")
    stored = from_json(folder.config_file.read_text())
    for config in (
        resumed(stored, folder.path, []),
        resumed(stored, folder.path, ["model=smollm2_135m", "compute.packing=auto"]),
        branched(stored, folder.path, BranchConfig(run="run", step=1, method="grpo"), []),
    ):
        assert config.compute.packing is settings.compute.packing is False
    with pytest.raises(ConfigError, match=r"compute\.packing=true cannot be used"):
        resumed(stored, folder.path, ["compute.packing=true"])


def test_other_runs_of_the_model_choose_as_the_first_did(settle):
    _, folder, _ = settle("phimoe")
    _, _, [line] = settle("phimoe", name="sibling")
    assert line.startswith(PADS)
    path = folder.cache_dir / "packing.json"
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), "an earlier run pads")))
    settings, _, [line] = settle("phimoe", name="another")
    assert "an earlier run pads" in line
    assert settings.compute.packing is False
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), "")))
    with pytest.raises(
        ConfigError, match=r"an earlier run of this model packed its rows; use compute.packing=false"
    ):
        settle("phimoe", name="last")


def test_a_typed_choice_is_kept_and_refused_where_packed_rows_would_be_wrong(settle):
    settings, folder, said = settle("phimoe", "compute.packing=false")
    assert (settings.compute.packing, said, folder.config_file.exists()) == (False, [], False)
    settings, _, said = settle("llama", "compute.packing=true")
    assert (settings.compute.packing, said) == (True, [])
    with pytest.raises(
        ConfigError, match=r"^compute\.packing=true cannot be used, since Phimoe.*use compute.packing=false"
    ):
        settle("phimoe", "compute.packing=true")
    with pytest.raises(ConfigError, match=r"^compute\.compile=true .* packed updates"):
        settle("phimoe", "compute.compile=true", name="compiled")


@pytest.mark.full
def test_a_model_with_sliding_windows_trains_and_resumes_without_a_setting(runs, tmp_path):
    save_policy(zoo_policy("gemma3_text"), tmp_path / "gemma")
    settings = (
        *("model=hub", f"model.source={tmp_path / 'gemma'}", "recipe=direct", "model.prompt=bare"),
        *("rollout.num_prompts=2", "rollout.group_size=2", "evaluation.max_new_tokens=16"),
        *("compute.device=cpu", "num_steps=2", "experiment_name=windows"),
    )
    folder = runs.train(*settings)
    assert "padded rows (compute.packing=auto): Gemma3Attention" in folder.log_file.read_text()
    assert json.loads(folder.config_file.read_text())["compute"]["packing"] is False
    runs.resume(folder, "num_steps=3")
    assert json.loads(folder.summary_file.read_text())["num_steps"] == 3
