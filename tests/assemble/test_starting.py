"""What is checked before a run directory is made, and what becomes of a run that fails to start."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.saved_policy import save_policy

from atrium.assemble.prompts import checked_encoder
from atrium.base.errors import AtriumError, ConfigError, RunFolderError
from atrium.base.records import Problem
from atrium.cli.app import main
from atrium.config.compose import compose
from atrium.models.policy import build_random_policy
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy, build_tokenizer
from atrium.runs.deletable import find_deletable
from atrium.runs.find import find_run
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, StatusWriter


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A language model's folder."""
    folder = tmp_path_factory.mktemp("models") / "model"
    architecture = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 256}
    save_policy(build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0), folder)
    return folder


def _break_template(model):
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": "{{ nothing.at.all }}"})
    )
    (model / "chat_template.jinja").unlink(missing_ok=True)


WRONG = {
    "weights": lambda model: (model / "model.safetensors").unlink(),
    "tokenizer": lambda model: [path.unlink() for path in model.glob("tokenizer*")],
    "chat_template": _break_template,
}


@pytest.mark.parametrize("what", WRONG)
def test_unusable_model_folder_leaves_no_run_directory(runs, model, tmp_path, what):
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    WRONG[what](broken)
    prompt = ["model.prompt=chat"] if what == "chat_template" else []
    with pytest.raises(AtriumError):
        runs.train("model=hub", f"model.source={broken}", f"experiment_name=no_{what}", *prompt)
    assert not (runs.runs_dir / f"no_{what}").exists()


def test_prompt_with_a_token_beyond_the_models_embeddings_is_refused_in_one_line():
    policy = build_tiny_policy(TinySettings(hidden_size=16, num_layers=1, num_heads=2), seed=0)
    policy.tokenizer.add_tokens(["banana"])
    config = compose(["model.prompt={user: '{question}', use_chat_template: false}"])
    problem = Problem(problem_id="p7", question="1+banana", answer="2")
    encode = checked_encoder(config, policy, problem, print, is_resumed=False)
    with pytest.raises(ConfigError, match=r"problem 'p7' has the token \d+ \('banana'\), but the vocabulary"):
        encode(problem)


def test_unusable_problems_leave_no_run_directory(runs, tmp_path):
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"question": "1+1=", "answer": "2"}\n')
    with pytest.raises(AtriumError, match="dataset"):
        runs.train("dataset=file", f"dataset.source={problems}", "experiment_name=no_data")
    assert not (runs.runs_dir / "no_data").exists()


def test_a_failed_start_is_never_last_hidden_in_lists_and_removed_by_clean(tmp_path, capsys):
    started, failed = (RunFolder.create(tmp_path / "runs", "study", "atr", seed) for seed in (0, 1))
    StatusWriter(started.status_file).advance(1)
    for folder in (started, failed):
        folder.write_config({"algorithm": {"name": "atr"}})
    StatusWriter(failed.status_file).end(RunState.FAILED, "there is no model", "settings")
    assert find_run(tmp_path / "runs", "last") == started
    assert main(["runs", "--runs-dir", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert failed.path.name not in shown
    assert "1 failed start hidden; --all lists them" in shown
    main(["runs", "--all", "--runs-dir", str(tmp_path / "runs")])
    assert failed.path.name in capsys.readouterr().out
    [deletable] = [one for one in find_deletable(tmp_path / "runs", set()) if one.run is not None]
    assert (deletable.path, deletable.what) == (failed.path, "failed to start: there is no model")


def test_last_says_that_no_run_has_started(tmp_path):
    folder = RunFolder.create(tmp_path / "runs", "study", "atr", 0)
    StatusWriter(folder.status_file).end(RunState.FAILED, "there is no model")
    with pytest.raises(RunFolderError, match="contains no run that has started"):
        find_run(tmp_path / "runs", "last")


def test_the_summary_of_a_failed_start_offers_no_resume(tmp_path, capsys):
    from atrium.assemble.run import print_summary

    folder = RunFolder.create(tmp_path / "runs", "study", "atr", 0)
    StatusWriter(folder.status_file).end(RunState.FAILED, "there is no model")
    print_summary(folder)
    shown = capsys.readouterr().out
    assert "there is no model" in shown
    assert "--resume" not in shown
