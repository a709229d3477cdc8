"""The scale follows the model: recipes, Hub sources that a file describes, and what cannot be meant."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from tests.config.test_language_models import NUM_PARAMETERS

from atrium.base.errors import ConfigError
from atrium.cli.app import main
from atrium.config import compose as composition
from atrium.config.compose import compose, compose_notes
from atrium.config.files import conf_folder
from atrium.config.scale import LARGE_MODEL
from atrium.models.shape import SIZES, read_shape

MATH = ("dataset=math", "benchmark=math_suite")
QWEN = ("model=qwen3_1_7b", *MATH)


def folder_of(tmp_path, hidden_size, num_layers, **settings):
    """A folder with the config.json of a small Llama."""
    folder = tmp_path / "model"
    folder.mkdir()
    keys = {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 8 // 3,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(keys | settings), encoding="utf-8")
    return folder


def hub(source, *more):
    return ["model=hub", f"model.source={source}", *MATH, *more]


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_a_language_model_alone_brings_the_scale_of_a_language_model(name):
    config = compose([f"model={name}", *MATH])
    thinks = config.model.thinking
    shortest = 4096 if thinks else 1024
    is_small = NUM_PARAMETERS[name] < LARGE_MODEL
    assert config.optimizer.learning_rate == (1e-5 if is_small else 1e-6)
    assert shortest <= config.rollout.max_new_tokens
    # As long as the literature lets models think, and few enough to take a tenth of the run.
    answer_tokens = 32_768 if thinks else config.rollout.max_new_tokens
    assert config.evaluation.max_new_tokens == answer_tokens
    assert config.evaluation.tests_before is not thinks
    assert config.rollout.max_new_tokens <= config.model.architecture["max_position_embeddings"] // 2
    assert config.experiment_name == name
    assert (config.evaluation.temperature, config.evaluation.top_p) == (
        (0.6, 0.95) if config.model.thinking or is_small else (0.7, 0.8)
    )


def test_a_thinking_model_trains_on_harder_problems_than_math_unless_told_otherwise():
    lines = ["model=qwen3_1_7b"]
    config = compose(lines)
    assert (config.dataset.name, config.benchmark.name) == ("deepscaler", "aime_all")
    [note] = compose_notes(config, lines)
    assert "dataset=deepscaler benchmark=aime_all" in note
    assert compose(["model=hub", "model.source=Qwen/Qwen3-1.7B"]).dataset.name == "deepscaler"
    assert compose([*lines, "benchmark=math_suite"]).benchmark.name == "math_suite"
    for other in ("dataset=math", "experiment=rpg_qwen3_4b_2k"):
        assert compose([*lines, other, "benchmark=math_suite"]).dataset.name != "deepscaler"
    for other in ("recipe=direct", "model.weights=random", "debug=tiny_steps"):
        assert compose([*lines, other]).dataset.kind == "arithmetic"
    assert compose(["model=qwen2_5_math_1_5b"]).dataset.kind == "arithmetic"


def test_adapters_get_a_larger_rate_than_whole_weights():
    assert compose(["model=qwen3_1_7b_lora", *MATH]).optimizer.learning_rate == 1e-5


def test_what_is_typed_or_chosen_wins_over_a_recipe():
    greedy = compose([*QWEN, "evaluation=greedy", "rollout.group_size=16"])
    assert (greedy.evaluation.temperature, greedy.evaluation.num_samples, greedy.rollout.group_size) == (
        0,
        1,
        16,
    )
    assert compose([*QWEN, "recipe=direct"]).rollout.max_new_tokens == 2048
    source = compose(["experiment=rpg_qwen3_4b_2k"])
    assert (source.num_steps, source.rollout.max_new_tokens) == (400, 2048)
    assert (source.evaluation.temperature, source.evaluation.top_p) == (1.0, 1.0)


def test_an_experiment_may_be_none_and_the_quickstart_can_be_asked_for():
    assert compose(["experiment=null", "debug=null", "evaluation=null"]) == compose(["experiment=quickstart"])


def test_a_model_without_a_recipe_says_where_to_write_one(tmp_path, monkeypatch):
    folder = tmp_path / "conf"
    shutil.copytree(conf_folder(), folder)
    shutil.copy(folder / "model" / "qwen3_1_7b.yaml", folder / "model" / "mine.yaml")
    monkeypatch.setattr(composition, "conf_folder", lambda: folder)
    with pytest.raises(ConfigError, match=r"^model=mine: conf/recipe/mine\.yaml.*recipe=NAME$"):
        compose(["model=mine", *MATH])
    assert compose(["model=mine", "recipe=thinking", *MATH]).rollout.max_new_tokens == 8192


@pytest.mark.parametrize("source", ["Qwen/Qwen3-1.7B", "qwen/qwen3-1.7b"])
def test_a_hub_id_that_a_file_describes_is_that_model_and_a_note_says_so(source):
    lines = hub(source, "model.revision=main")
    config = compose(lines)
    assert config.model.prompt.name == "qwen3_thinking"
    assert config.rollout.max_new_tokens == 8192
    assert config.model.revision == "main"
    [note] = compose_notes(config, lines)
    assert "conf/model/qwen3_1_7b.yaml" in note


@pytest.mark.parametrize(
    ("hidden_size", "num_layers", "rate"), [(576, 30, 1e-5), (2048, 24, 1e-6), (36, 2, 3e-4)]
)
def test_a_folder_that_no_file_describes_gets_the_recipe_for_its_size(
    tmp_path, hidden_size, num_layers, rate
):
    lines = hub(folder_of(tmp_path, hidden_size, num_layers))
    config = compose(lines)
    assert config.optimizer.learning_rate == rate
    assert re.search(r"recipe=hub.* is used for [\d,]+ parameters", compose_notes(config, lines)[0])


def test_a_hub_id_that_no_file_describes_gets_the_generic_recipe_and_a_note():
    lines = hub("somebody/model")
    config = compose(lines)
    assert (config.optimizer.learning_rate, config.rollout.max_new_tokens) == (1e-6, 2048)
    assert "its size is unknown, so recipe=hub" in compose_notes(config, lines)[0]


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_parameters_are_counted_from_the_keys_of_a_config(name):
    counted = read_shape(compose([f"model={name}"]).model.architecture).num_parameters
    assert counted == pytest.approx(NUM_PARAMETERS[name], rel=1e-3)


def test_parameters_are_not_guessed_where_keys_are_missing():
    assert read_shape({"hidden_size": 64}) is None
    assert read_shape(None) is None


def test_more_heads_than_the_width_have_no_shape_unless_a_heads_size_is_given():
    keys = {**dict.fromkeys(SIZES, 2), "num_attention_heads": 4}
    assert read_shape(keys) is None
    assert read_shape({**keys, "head_dim": 2}).head_size == 2


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (
            "stress",
            r"^optimizer\.learning_rate=0\.0005 destroys a fully trained pretrained model of 1\.7 billion",
        ),
        ("brief", r"^rollout\.max_new_tokens=256 cuts off a reasoning model"),
    ],
)
def test_a_scale_that_cannot_be_meant_is_an_error_unless_it_is_typed(
    tmp_path, monkeypatch, experiment, message
):
    folder = tmp_path / "conf"
    shutil.copytree(conf_folder(), folder)
    (folder / "experiment" / "brief.yaml").write_text(
        "# @package _global_\nrollout: {max_new_tokens: 256}\n", encoding="utf-8"
    )
    monkeypatch.setattr(composition, "conf_folder", lambda: folder)
    lines = [*QWEN, f"experiment={experiment}"]
    with pytest.raises(ConfigError, match=message):
        compose(lines)
    for exempt in ("model.weights=random", "debug=tiny_steps"):
        compose([*lines, exempt])
    typed = [*lines, "optimizer.learning_rate=5e-4", "rollout.max_new_tokens=256"]
    notes = compose_notes(compose(typed), typed)
    assert len(notes) == 2
    assert all(note.endswith("it is used because it was typed") for note in notes)


def test_a_language_model_is_debugged_in_seconds_with_few_tokens():
    config = compose([*QWEN, "model.weights=random", "debug=tiny_steps"])
    assert (config.num_steps, config.rollout.max_new_tokens, config.evaluation.max_new_tokens) == (3, 64, 64)


def test_a_stored_configuration_of_any_scale_can_be_read():
    config = compose([*QWEN, "optimizer.learning_rate=5e-4", "rollout.max_new_tokens=64"])
    assert composition.from_json(composition.to_json(config)) == config


def test_a_model_that_cannot_fit_is_refused_in_one_line_before_anything_is_loaded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("atrium.runs.provenance.memory_limit_mb", lambda: 8192)
    assert main(["train", *hub("Qwen/Qwen3-1.7B"), f"runs_dir={tmp_path}", "compute.device=cpu"]) == 2
    printed = capsys.readouterr()
    assert re.search(r"needs at least 28\.\d GB of main memory.*only 8\.6 GB are available; use", printed.err)
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
