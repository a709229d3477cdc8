from __future__ import annotations

import json
import logging
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.saved_policy import save_policy

from atrium.base.errors import CheckpointError, ConfigError
from atrium.models.architecture import random_shape
from atrium.models.policy import build_random_policy, load_policy
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy, build_tokenizer

SMALL = TinySettings(hidden_size=16, num_layers=1, num_heads=2, num_key_value_heads=1, head_dim=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "policy"
    save_policy(build_tiny_policy(SMALL, seed=0), folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of a saved policy that a test may damage."""
    return shutil.copytree(saved, tmp_path / "policy")


def _load(source, **options):
    return load_policy(source, dtype=torch.float32, device="cpu", **options)


def _edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _message(kind, source, **options):
    """The message of the error that loading raises: one line, and nothing on the terminal besides."""
    with pytest.raises(kind) as caught:
        _load(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_a_policy_comes_back_as_it_was_saved(folder, capfd):
    policy, loaded = build_tiny_policy(SMALL, seed=0), _load(folder)
    before, after = policy.model.state_dict(), loaded.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (loaded.stop_token_ids, loaded.pad_token_id) == (policy.stop_token_ids, policy.pad_token_id)
    assert loaded.context_length == policy.context_length
    assert not loaded.model.training
    assert capfd.readouterr() == ("", "")


def test_a_policy_is_loaded_in_the_asked_dtype(folder):
    assert load_policy(folder, dtype=torch.bfloat16, device="cpu").model.dtype == torch.bfloat16


def test_loading_leaves_random_state_and_log_levels_alone(folder):
    levels = [logging.getLogger(name).level for name in ("transformers", "huggingface_hub")]
    state = torch.get_rng_state()
    _load(folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert [logging.getLogger(name).level for name in ("transformers", "huggingface_hub")] == levels


def test_all_end_tokens_of_model_and_tokenizer_stop(folder):
    _edit_json(folder / "generation_config.json", eos_token_id=[2, 6])
    assert _load(folder).stop_token_ids == (2, 6)


def test_padding_falls_back_to_the_end_token(folder):
    _edit_json(folder / "config.json", pad_token_id=None)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    del tokenizer["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert _load(folder).pad_token_id == 2


def test_a_policy_without_an_end_token_is_refused(folder):
    for name in ("config.json", "generation_config.json"):
        _edit_json(folder / name, eos_token_id=None)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    del tokenizer["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert "end-of-sequence" in _message(ConfigError, folder)


def test_end_tokens_beyond_the_vocabulary_are_dropped_and_refused_where_none_is_left(folder):
    _edit_json(folder / "generation_config.json", eos_token_id=[2, 9999])
    assert 9999 not in _load(folder).stop_token_ids
    _edit_json(folder / "generation_config.json", eos_token_id=9999)
    _edit_json(folder / "config.json", eos_token_id=9999)
    _edit_json(folder / "tokenizer_config.json", eos_token=None)
    assert "tokens (found: [9999]), so completions could never end" in _message(ConfigError, folder)


def test_a_missing_folder_is_named_with_its_nearest_sibling(folder):
    assert f"did you mean '{folder}'" in _message(ConfigError, folder.with_name("polcy"))


@pytest.mark.parametrize("source", ["./nowhere", "~nobody/model", "/nowhere/model", "a/b/c", "a b"])
def test_a_source_that_is_neither_folder_nor_hub_id_is_refused(source):
    assert "nor a Hub id" in _message(ConfigError, source)


def test_a_file_is_refused(folder):
    assert "is a file" in _message(ConfigError, folder / "config.json")


def test_a_hub_id_that_is_not_in_the_cache_is_one_line_without_the_network(tmp_path):
    # The library reads its settings once, at import; so this test relies on what tests/conftest.py sets.
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    message = _message(ConfigError, "nobody/no-such-model")
    assert "cannot load the model 'nobody/no-such-model'" in message
    assert "HF_HUB_OFFLINE" in message


def test_a_revision_of_a_local_folder_is_refused_as_idle(folder):
    assert "model.revision=main cannot be used" in _message(ConfigError, folder, revision="main")


def test_a_folder_without_config_is_refused(folder):
    (folder / "config.json").unlink()
    assert "has no config.json" in _message(CheckpointError, folder)


def test_pickled_weights_are_never_loaded(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    assert "does not load pickled weights" in _message(CheckpointError, folder)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeroed"])
def test_damaged_weights_are_refused(folder, damage, capfd):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes({"cut": content[:-8], "empty": b"", "zeroed": bytes(64) + content[64:]}[damage])
    assert "damaged" in _message(CheckpointError, folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_damaged_json_is_refused(folder, name):
    (folder / name).write_text("{")
    assert f"cannot load the model '{folder}'" in _message(CheckpointError, folder)


@pytest.mark.parametrize("changes", [{"hidden_size": 32}, {"hidden_size": "wide"}, {"vocab_size": 5}])
def test_weights_that_do_not_fit_the_config_are_refused(folder, changes, capfd):
    _edit_json(folder / "config.json", **changes)
    _message(CheckpointError, folder)
    assert capfd.readouterr() == ("", "")


def test_missing_tensors_are_refused_rather_than_drawn_at_random(folder):
    _edit_json(folder / "config.json", num_hidden_layers=2, layer_types=["full_attention"] * 2)
    assert "model.layers.1" in _message(CheckpointError, folder)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_the_tensors_name(folder, number):
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[-1]
    weights[name].view(-1)[3] = number
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"must be finite, but there is NaN or infinity in {name};" in _message(CheckpointError, folder)


def test_a_pipe_or_device_in_a_model_folder_is_refused(folder):
    os.mkfifo(folder / "added_tokens.json")
    with pytest.raises(CheckpointError, match=r"added_tokens\.json, which is not a regular file"):
        _load(folder)


def test_quantised_weights_are_refused(folder):
    _edit_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "are quantized (gptq), so they cannot be trained" in _message(CheckpointError, folder)


def test_a_model_that_is_no_language_model_is_refused(folder):
    _edit_json(folder / "config.json", model_type="no_such_architecture")
    assert "no_such_architecture" in _message(CheckpointError, folder)


def test_code_in_a_model_folder_is_never_run(folder, tmp_path):
    witness = tmp_path / "witness"
    (folder / "modeling.py").write_text(f"open({str(witness)!r}, 'w').close()\nclass Config: pass\n")
    _edit_json(folder / "config.json", model_type="own", auto_map={"AutoConfig": "modeling.Config"})
    assert "never runs" in _message(ConfigError, folder)
    assert not witness.exists()


def test_a_random_policy_has_the_given_architecture_and_the_tokenizers_special_tokens():
    architecture = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    }
    state = torch.get_rng_state()
    policy = build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.model.config.model_type == "llama"
    assert policy.model.config.vocab_size == 28
    assert (policy.stop_token_ids, policy.pad_token_id, policy.context_length) == ((2,), 0, 64)


@pytest.mark.parametrize("model_type", ["qwen3", "phi3"])  # phi3's own padding token is 32000
def test_the_shape_of_an_architecture_without_a_vocabulary_is_that_of_its_random_policy(model_type):
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    architecture = {"model_type": model_type, **sizes}
    policy = build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0)
    assert random_shape(architecture).num_parameters == policy.num_parameters


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({"model_type": "qwen33"}, "the architecture 'qwen33' cannot be built"),
        ({"model_type": "qwen3", "hidden_size": "a"}, "hidden_size"),
        ({"model_type": "qwen3", "vocab_size": 5}, "vocab_size must be at least 28"),
        ({"hidden_size": 16}, "architecture.model_type"),
    ],
)
def test_an_impossible_architecture_is_refused(architecture, message):
    with pytest.raises(ConfigError, match=message):
        build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0)
