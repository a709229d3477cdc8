from __future__ import annotations

import pytest
import torch
from tests.saved_policy import save_policy
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from atrium.models.settings import TOKENS, TinySettings
from atrium.models.tiny import PIECE, build_tiny_policy, build_tokenizer

TEXTS = [
    "7+8-4+3=",
    r"7+8=15;15-4=11;11+3=14;\boxed{14}",
    "(1*2)/3.\n\n4 }",
]


@pytest.fixture(scope="module")
def policy():
    return build_tiny_policy(TinySettings(), seed=0)


def test_the_model_is_a_qwen3_of_100480_parameters(policy):
    assert isinstance(policy.model, Qwen3ForCausalLM)
    assert policy.num_parameters == 100_480
    assert policy.model.dtype == torch.float32
    assert not policy.model.training


def test_the_tokenizer_has_28_tokens_and_round_trips_every_text(policy):
    assert len(policy.tokenizer) == len(TOKENS) == len(set(TOKENS)) == 28
    for text in TEXTS:
        ids = policy.tokenizer.encode(text)
        assert policy.tokenizer.decode(ids) == text
        assert policy.tokenizer.convert_ids_to_tokens(ids) == PIECE.findall(text)


def test_the_opening_of_a_box_is_one_token_and_unknown_text_is_marked():
    tokenizer = build_tokenizer()
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(r"\boxed{7}")) == [r"\boxed{", "7", "}"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x7")) == ["<unk>", "7"]


def test_special_tokens_are_skipped_on_demand():
    tokenizer = build_tokenizer()
    ids = tokenizer.encode(r"\boxed{7}<eos><pad><pad>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == r"\boxed{7}"


def test_the_chat_template_marks_turns_and_ends_answers():
    chat = [
        {"role": "system", "content": "1"},
        {"role": "user", "content": "7+8="},
        {"role": "assistant", "content": r"\boxed{15}"},
    ]
    tokenizer = build_tokenizer()
    assert tokenizer.apply_chat_template(chat, tokenize=False) == r"<q>1<q>7+8=<a>\boxed{15}<eos>"
    prompt = tokenizer.apply_chat_template(chat[1:2], tokenize=False, add_generation_prompt=True)
    assert prompt == "<q>7+8=<a>"


def test_the_stop_token_is_eos_and_padding_differs_from_it(policy):
    assert policy.stop_token_ids == (policy.tokenizer.convert_tokens_to_ids("<eos>"),)
    assert policy.pad_token_id == policy.tokenizer.convert_tokens_to_ids("<pad>")
    assert policy.pad_token_id not in policy.stop_token_ids
    assert policy.model.generation_config.eos_token_id in policy.stop_token_ids
    assert policy.context_length == 128


def test_weights_depend_on_the_seed_only_and_leave_the_global_random_state_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_tiny_policy(TinySettings(), seed=3).model.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = build_tiny_policy(TinySettings(), seed=3).model.state_dict()
    other = build_tiny_policy(TinySettings(), seed=4).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_weights_start_at_the_asked_scale(policy):
    weight = policy.model.model.layers[0].mlp.up_proj.weight
    assert weight.std().item() == pytest.approx(0.1, rel=0.05)


def test_the_auto_classes_load_what_was_saved(policy, tmp_path, capfd):
    save_policy(policy, tmp_path / "policy")
    assert capfd.readouterr() == ("", "")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    saved, loaded = policy.model.state_dict(), model.state_dict()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    assert model.generation_config.eos_token_id == policy.stop_token_ids[0]
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == policy.tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
    chat = [{"role": "user", "content": "7+8="}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == "<q>7+8=<a>"
