"""Adapters: trained in place of the weights, merged for whoever only samples, stored as peft stores them."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.saved_policy import save_policy

from atrium.base.errors import CheckpointError, ConfigError, EngineError
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.engines.qwen3_decoder import has_fused_form
from atrium.engines.transformers_engine import TransformersEngine
from atrium.engines.weights import check_weights
from atrium.models.lora import (
    LoraSettings,
    adapters_off,
    add_lora,
    base_weights,
    has_lora,
    merged_weights,
    plain_copy,
    read_adapter,
)
from atrium.models.policy import load_policy
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy

SMALL = TinySettings(hidden_size=16, num_layers=2, num_heads=2, num_key_value_heads=1, head_dim=8)
TOKENS = torch.tensor([[3, 7, 8, 9, 4, 11, 12]])
LORA = LoraSettings(rank=3, alpha=6.0)


@pytest.fixture
def plain():
    return build_tiny_policy(SMALL, seed=0)


@pytest.fixture
def adapted(plain):
    """The same policy with adapters that have been trained: B is not 0."""
    model = copy.deepcopy(plain.model)
    add_lora(model, LORA, seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return replace(plain, model=model)


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def test_a_policy_with_new_adapters_says_what_it_said_before(plain):
    before = logits(plain.model)
    add_lora(plain.model, LORA, seed=1)
    assert torch.equal(logits(plain.model), before)


def test_only_the_adapters_are_trained_and_they_depend_on_the_seed_alone(plain):
    models = []
    for seed, global_seed in ((1, 0), (1, 5), (2, 0)):
        model = copy.deepcopy(plain.model)
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        add_lora(model, LORA, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        models.append({name: value for name, value in model.named_parameters() if value.requires_grad})
    first, same, other = models
    assert len(first) == 2 * 7 * SMALL.num_layers
    assert all("lora_" in name for name in first)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_merged_weights_say_what_the_adapters_say_and_the_base_stays(plain, adapted):
    assert (logits(adapted.model) - logits(plain.model)).abs().max() > 0.1
    copied = plain_copy(adapted.model)
    assert torch.allclose(logits(copied), logits(adapted.model), atol=1e-5)
    assert not has_lora(copied)
    assert has_fused_form(copied)
    assert not has_fused_form(adapted.model)
    stored = plain.model.state_dict()
    assert base_weights(adapted.model).keys() == merged_weights(adapted.model).keys() == stored.keys()
    assert all(torch.equal(value, stored[name]) for name, value in base_weights(adapted.model).items())


def test_with_adapters_off_the_policy_is_the_one_it_began_as(plain, adapted):
    with adapters_off(adapted.model):
        assert torch.equal(logits(adapted.model), logits(plain.model))
    assert (logits(adapted.model) - logits(plain.model)).abs().max() > 0.1


def test_merged_weights_fit_the_model_and_others_are_refused(plain, adapted):
    own = plain.model.state_dict()
    check_weights(own, merged_weights(adapted.model))
    with pytest.raises(EngineError, match=r"do not fit the model .*lora_A"):
        check_weights(own, adapted.model.state_dict())


def test_an_engine_takes_merged_weights_and_samples_what_the_policy_says(plain, adapted):
    engine = TransformersEngine(
        model=plain_copy(plain.model),
        tokenizer=plain.tokenizer,
        stop_token_ids=plain.stop_token_ids,
        pad_token_id=plain.pad_token_id,
        context_length=plain.context_length,
    )
    engine.update_weights(adapted.weights(), 1)
    prompt = np.array([3, 7, 8], np.int32)
    requests = [GenerationRequest(prompt_token_ids=prompt, sample_seeds=(1, 2, 3))]
    (generation,) = engine.generate(requests, SamplingParams(max_new_tokens=12))
    for completion in generation.completions:
        tokens = torch.from_numpy(np.concatenate([prompt, completion.token_ids])).long()
        with torch.no_grad():
            logprobs = adapted.model(tokens[None, :-1]).logits[0, len(prompt) - 1 :].log_softmax(-1)
        own = logprobs.gather(1, tokens[len(prompt) :, None])[:, 0]
        assert torch.allclose(own, torch.from_numpy(completion.logprobs), atol=2e-5)


def test_a_saved_policy_is_a_plain_folder_with_adapters_that_peft_loads(plain, adapted, tmp_path):
    save_policy(adapted, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy", dtype=torch.float32, device="cpu")
    assert not has_lora(loaded.model)
    assert torch.allclose(logits(loaded.model), logits(adapted.model), atol=1e-5)
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls what transformers renames
        other = PeftModel.from_pretrained(copy.deepcopy(plain.model), tmp_path / "policy" / "adapter")
    assert torch.equal(logits(other), logits(adapted.model))


def test_stored_adapters_come_back_bit_for_bit(plain, adapted, tmp_path):
    save_policy(adapted, tmp_path / "policy")
    add_lora(plain.model, LORA, seed=9)
    read_adapter(plain.model, tmp_path / "policy" / "adapter")
    before, after = adapted.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_adapters_of_other_settings_or_damaged_ones_are_refused_in_one_line(plain, adapted, tmp_path):
    save_policy(adapted, tmp_path / "policy")
    add_lora(plain.model, LoraSettings(rank=2, alpha=6.0), seed=9)
    with pytest.raises(CheckpointError, match=r"do not fit model\.lora \(missing.* and 27 more\)"):
        read_adapter(plain.model, tmp_path / "policy" / "adapter")
    file = tmp_path / "policy" / "adapter" / "adapter_model.safetensors"
    save_file(dict(list(load_file(file).items())[1:]), file)
    with pytest.raises(CheckpointError, match=r"of another shape: [^ ]*\)"):
        read_adapter(adapted.model, file.parent)
    file.write_bytes(b"\0\1")
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        read_adapter(adapted.model, file.parent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["q_porj", "lm_head", "embed_tokens", "self_attn"])
def test_maps_that_cannot_be_adapted_are_refused_with_those_that_can(plain, wrong):
    with pytest.raises(ConfigError, match=rf"contains {wrong}, but .* use all_linear.*q_proj") as caught:
        add_lora(plain.model, LoraSettings(rank=2, alpha=2.0, target_modules=("q_proj", wrong)), seed=0)
    assert "\n" not in str(caught.value)
    assert not has_lora(plain.model)


def test_chosen_maps_alone_get_adapters(plain):
    add_lora(plain.model, LoraSettings(rank=2, alpha=2.0, target_modules=("q_proj", "v_proj")), seed=0)
    adapted = {name.split(".lora_")[0] for name, _ in plain.model.named_parameters() if "lora_" in name}
    assert adapted == {f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(2) for name in "qv"}
