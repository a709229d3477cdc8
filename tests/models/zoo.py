"""Tiny random models of many architectures, by the keys of their config.json."""

from __future__ import annotations

import torch

from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer

WINDOW = 8
"""Of architectures with windows or chunks; rows of the tests are longer. Beyond its window, Doge chooses
among equal keys by their place in memory, so its window is longer than the rows."""
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
_KV = {**_SIZES, "num_key_value_heads": 2}
_HEADS = {**_KV, "head_dim": 8}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
}
_SLIDING = {"sliding_window": WINDOW}
_MIXED = {**_SLIDING, "layer_types": ["sliding_attention", "full_attention"]}

PACKED = {
    "llama": _KV,
    "qwen2": _KV,
    "qwen3": _HEADS,
    "qwen3_moe": {**_HEADS, **_EXPERTS},
    "gemma": _HEADS,
    "phi": _SIZES,
    "phi3": {**_KV, "sliding_window": None},
    "olmo": _KV,
    "olmo2": _KV,
    "olmoe": {**_KV, "num_experts": 4, "num_experts_per_tok": 2},
    "cohere": {**_KV, "logit_scale": 1.0},
    "granite": {**_KV, "residual_multiplier": 0.3, "embedding_multiplier": 2.0},
    "granitemoe": {**_KV, **_LOCAL_EXPERTS},
    "smollm3": _KV,
    "starcoder2": {**_KV, "sliding_window": None},
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neox": _SIZES,
    "opt": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "max_position_embeddings": 128,
        "word_embed_proj_dim": 32,
        "init_std": 0.2,
    },
    "persimmon": _SIZES,
    "biogpt": _SIZES,
    "glm": _HEADS,
    "glm4": _HEADS,
    "glm4_moe": {**_HEADS, **_ROUTED},
    "helium": _HEADS,
    "ernie4_5": _HEADS,
    "mixtral": {**_KV, **_LOCAL_EXPERTS, "sliding_window": None},
    "seed_oss": _HEADS,
    "hunyuan_v1_dense": _HEADS,
    "arcee": _KV,
    "apertus": _KV,
    "diffllama": _KV,
}
PADDED = {
    "mistral": {**_KV, **_SLIDING},
    "ministral": {**_HEADS, **_MIXED},
    "gemma3_text": {**_HEADS, **_MIXED, "query_pre_attn_scalar": 8},
    "olmo3": {**_KV, **_MIXED},
    "cohere2": {**_KV, **_MIXED, "logit_scale": 1.0},
    "exaone4": {**_KV, **_SLIDING, "sliding_window_pattern": 2},
    "gpt_oss": {**_HEADS, **_LOCAL_EXPERTS, **_MIXED},
    "phimoe": {**_KV, **_LOCAL_EXPERTS, **_SLIDING},
    "qwen2_moe": {
        **_KV,
        **_EXPERTS,
        **_SLIDING,
        "shared_expert_intermediate_size": 24,
        "use_sliding_window": True,
        "max_window_layers": 2,
    },
    "llama4_text": {
        **_HEADS,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": WINDOW,
        "moe_layers": [1],
        "no_rope_layers": [1, 0],
    },
    "doge": {**_KV, "keep_window_size": 64},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 128,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "initializer_range": 0.2,
    },
    "stablelm": _KV,
    "nemotron": _KV,
    "falcon": {**_SIZES, "num_kv_heads": 4},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, "initializer_range": 0.2},
    "gptj": {**_GPT2, "rotary_dim": 4},
    "deepseek_v2": {**_SIZES, **_ROUTED, **_LATENT, "head_dim": 8, "topk_method": "greedy"},
    "deepseek_v3": {**_SIZES, **_ROUTED, **_LATENT, "head_dim": 8},
}
REFUSED = {
    "gemma2": ({**_HEADS, **_SLIDING, "query_pre_attn_scalar": 8}, "changes logits after the LM head"),
    "lfm2": ({**_KV, "layer_types": ["conv", "full_attention"]}, "has a recurrent state"),
    "mamba2": (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 8},
        "has a recurrent state",
    ),
    "openai-gpt": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}, "has no key-value cache"),
}
"""Architectures that cannot be trained or sampled, and what the one line says."""
FAST = ("llama", "qwen3_moe", "gemma3_text", "phimoe", "stablelm", "deepseek_v3")
"""Those that `make test` runs."""


def zoo_policy(model_type, seed=0):
    """A policy of one of the architectures, in float32 on the CPU."""
    keys = {**PACKED, **PADDED, **{name: keys for name, (keys, _) in REFUSED.items()}}[model_type]
    policy = build_random_policy({"model_type": model_type, **keys}, tokenizer=build_tokenizer(), seed=seed)
    with torch.no_grad():
        for name, value in policy.model.named_parameters():
            if bool(
                (value == value.flatten()[0]).all()
            ):  # norms, biases and Doge's dynamic mask begin as constants
                value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    return policy
