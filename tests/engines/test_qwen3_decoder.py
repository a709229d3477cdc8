from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.engines.conftest import PAD, VOCABULARY, build_model, logit_rounding
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from atrium.engines.decoding import Decoder
from atrium.engines.qwen3_decoder import Qwen3Decoder, has_fused_form

PROMPTS = {"padded": [[5, 6, 7, 8], [9], [10, 11, 12]], "equal": [[5, 6], [7, 8], [9, 10]]}


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize(
    "changes", [{}, {"num_key_value_heads": 4}, {"num_key_value_heads": 1}, {"head_dim": 10}]
)
def test_fused_steps_equal_those_of_the_module_in_double_precision_up_to_rounding(prompts, changes):
    model = build_model(0, **changes)
    exact = copy.deepcopy(model).double()
    token_ids = [np.array(prompt, np.int32) for prompt in PROMPTS[prompts]]
    with torch.inference_mode():
        module, fused = (
            kind(of, token_ids, pad_token_id=PAD, max_new_tokens=12)
            for kind, of in ((Decoder, exact), (Qwen3Decoder, model))
        )
        for step in range(12):
            if step == 7:
                for decoder in (module, fused):
                    decoder.select(torch.tensor([2, 0]))
            token_N = module.logit_NV.argmax(-1)
            module.step(token_N)
            fused.step(token_N)
            bound = logit_rounding(model.config) * float(module.logit_NV.abs().max())
            torch.testing.assert_close(fused.logit_NV.double(), module.logit_NV, atol=bound, rtol=0.0)


def test_a_plain_float32_model_has_a_fused_form():
    assert has_fused_form(build_model(0))
    assert has_fused_form(build_model(0, tie_word_embeddings=False))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        {"attn_implementation": "eager"},
    ],
)
def test_other_settings_run_the_module(changes):
    assert not has_fused_form(build_model(0, **changes))


def test_other_dtypes_and_architectures_run_the_module():
    assert not has_fused_form(build_model(0).to(torch.bfloat16))
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    assert not has_fused_form(LlamaForCausalLM(config))


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_anywhere_runs_the_module(register):
    model = build_model(0)
    handle = getattr(model.model.layers[1].mlp, register)(lambda *arguments: None)
    assert not has_fused_form(model)
    handle.remove()
    assert has_fused_form(model)


def test_an_adapter_in_place_of_a_projection_runs_the_module():
    class Adapter(nn.Linear):
        pass

    model = build_model(0)
    model.model.layers[0].self_attn.v_proj = Adapter(32, 16, bias=False)
    assert not has_fused_form(model)
