"""A run knows the model, the prompts and the date that it began with, and goes on with them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from tests.saved_policy import save_policy

from atrium.base.errors import DataError
from atrium.cli import main
from atrium.config.dates import dated
from atrium.models.digests import source_digests, weights_digest
from atrium.models.policy import load_policy
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy
from atrium.runs.run_folder import RunFolder

SHAPE = TinySettings(hidden_size=32, num_layers=1, feed_forward_size=64)
CLOCK = "{% set form = '%d' %}{{ strftime_now(form) }}"
METHOD = ("algorithm=grpo_kl", "num_steps=2", "evaluation.every_num_steps=null", "checkpoint.keep_best=false")


@pytest.fixture(scope="module")
def first_source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "model"
    policy = build_tiny_policy(SHAPE, seed=0)
    policy.tokenizer.chat_template = CLOCK + policy.tokenizer.chat_template
    save_policy(policy, folder)
    return folder


def _model(source):
    return ("model=hub", f"model.source={source}", "model.prompt=question", *METHOD)


@pytest.fixture
def begun(runs, first_source, tmp_path):
    """A run of its own model folder, stopped after its first step."""
    source = shutil.copytree(first_source, tmp_path / "model")
    name = f"source-{tmp_path.name}"
    folder = runs.killed_after(1, *_model(source), f"experiment_name={name}")
    return folder, source


def _edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _change_weights(source):
    policy = load_policy(source, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        next(policy.model.parameters())[0, 0] += 1e-3
    (source / "model.safetensors").unlink()
    policy.model.save_pretrained(source)


def _change_template(source):
    path = source / "chat_template.jinja"
    path.write_text("7" + path.read_text())


CHANGES = {
    "weights": _change_weights,
    "generation config": lambda source: _edit_json(source / "generation_config.json", eos_token_id=[2, 9]),
    "chat template": _change_template,
    "tokenizer": lambda source: _edit_json(source / "tokenizer_config.json", eos_token="<q>"),
}


@pytest.mark.parametrize("part", CHANGES)
def test_digest_tells_which_part_of_a_source_changed(first_source, tmp_path, part):
    def digests(folder):
        policy = load_policy(folder, dtype=torch.float32, device="cpu")
        return source_digests(policy, weights_digest(policy.weights()))

    source = shutil.copytree(first_source, tmp_path / "model")
    before = digests(source)
    CHANGES[part](source)
    after = digests(source)
    assert [name for name in before if before[name] != after[name]] == [part]


def test_resuming_with_a_changed_source_is_refused_and_names_the_part(runs, begun):
    folder, source = begun
    _change_weights(source)
    with pytest.raises(DataError, match=r"the files of model.source: weights changed since the run began"):
        runs.resume(folder)


def test_older_run_goes_on_bit_for_bit_with_the_files_of_its_checkpoint(
    runs, begun, first_source, same_record
):
    """An older run has no record of its source, whose files were changed meanwhile."""
    folder, source = begun
    config = json.loads(folder.config_file.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", config["model"]["date"])
    provenance = json.loads(folder.provenance_file.read_text())
    assert set(provenance["data"]["model_source"]) == {*CHANGES, "architecture"}
    del provenance["data"]["model_source"], provenance["data"]["prompt_hashes"]
    folder.provenance_file.write_text(json.dumps(provenance))
    _edit_json(source / "generation_config.json", eos_token_id=[2, 9])
    _change_template(source)
    runs.resume(folder)
    log = folder.log_file.read_text()
    assert log.count("did not record its prompts and model") == 1
    whole = runs.train(
        *_model(first_source),
        f"experiment_name={folder.path.parent.name}-whole",
        f"model.date={config['model']['date']}",
    )
    same_record(folder, whole, step=2)
    assert json.loads(folder.provenance_file.read_text())["data"]["model_source"]


def test_changed_prompts_are_named_at_resume(runs, begun):
    folder, _ = begun
    config = json.loads(folder.config_file.read_text())
    config["model"]["date"] = "2001-02-03"
    folder.config_file.write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"the prompts of the training set, .* changed since the run began"):
        runs.resume(folder)


@pytest.mark.full
@pytest.mark.parametrize("is_recorded", [True, False])
def test_run_resumed_after_midnight_goes_on_with_the_prompts_of_its_start(
    runs, first_source, tmp_path, monkeypatch, is_recorded
):
    """Runs recorded before have no date in their settings, only the time of their start."""
    started, name = 1_732_579_199.0, f"midnight-{tmp_path.name}"
    with monkeypatch.context() as patched:
        patched.setattr("atrium.assemble.training.start_of", lambda resume: started)
        folder = runs.killed_after(1, *_model(first_source), f"experiment_name={name}")
    config = json.loads(folder.config_file.read_text())
    assert config["model"].pop("date") == "2024-11-25"
    if not is_recorded:
        folder.config_file.write_text(json.dumps(config))
        _edit_json(folder.status_file, started=started)
    hashes = json.loads(folder.provenance_file.read_text())["data"]["prompt_hashes"]
    runs.resume(folder)
    assert json.loads(folder.provenance_file.read_text())["data"]["prompt_hashes"] == hashes
    assert json.loads(folder.status_file.read_text())["step"] == 2


def test_date_is_the_day_in_utc_and_is_kept(runs):
    config = runs.config()
    assert dated(config, 1_732_579_199.0).model.date == "2024-11-25"
    assert dated(config, 1_732_579_200.0).model.date == "2024-11-26"
    assert dated(runs.config("model.date=2020-02-29"), 0.0).model.date == "2020-02-29"


@pytest.mark.parametrize("date", ["2026-02-30", "today", "25 Nov 2026"])
def test_wrong_date_is_one_line(date, capsys):
    assert main(["train", "debug=tiny_steps", f"model.date='{date}'"]) == 2
    assert "model.date" in capsys.readouterr().err


@pytest.mark.full
def test_runs_of_a_multirun_share_the_date(tmp_path, monkeypatch):
    started = iter((1_732_579_199.0, *[1_732_579_299.0] * 1000))
    monkeypatch.setattr("atrium.assemble.beginning.time.time", lambda: next(started))
    small = (
        "debug=tiny_steps",
        "num_steps=1",
        "dataset.num_test=2",
        "dataset.num_validation=2",
        "tracking=none",
    )
    assert main(["train", "--multirun", "seed=0,1", *small, f"runs_dir={tmp_path}"]) == 0
    folders = [RunFolder(path) for path in (tmp_path / "debug").iterdir()]
    dates = [json.loads(folder.config_file.read_text())["model"]["date"] for folder in folders]
    assert dates == ["2024-11-25"] * 2
