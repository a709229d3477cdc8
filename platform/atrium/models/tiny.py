r"""The built-in policy: a Qwen3 model of 100,480 parameters and a tokenizer of 28 tokens.

Both are ordinary transformers objects made locally, with random weights; `warmup` teaches them the
built-in task. The tokenizer works on characters, except that `\boxed{` is one token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from atrium.models.policy import Policy, build_random_policy

_SPECIAL = ("<pad>", "<unk>", "<eos>", "<q>", "<a>")
TOKENS = (*_SPECIAL, "\\boxed{", "}", *"0123456789", *"+-=;", *"*/(). \n")
"""The vocabulary; a token's place is its id. The last seven do not occur in the chain task."""

PIECE = re.compile(r"\\boxed\{|[\s\S]")
"""How text without special tokens falls into tokens."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<a>' + message['content'] + '<eos>' }}"
    "{% else %}{{ '<q>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySettings:
    """The shape of the built-in model.

    `initializer_range` is far above transformers' 0.02: about 1 / sqrt(hidden_size) makes the warm-up
    several times faster.
    """

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    feed_forward_size: int = 192
    initializer_range: float = 0.1
    context_length: int = 128


def build_tokenizer() -> PreTrainedTokenizerBase:
    r"""The 28-token tokenizer, with its chat template: `<q>7+8=<a>7+8=15;\\boxed{15}<eos>`."""
    backend = Tokenizer(
        models.WordLevel(vocab={token: index for index, token in enumerate(TOKENS)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE.pattern), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        additional_special_tokens=["<q>", "<a>"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_tiny_policy(settings: TinySettings, seed: int) -> Policy:
    """The built-in model with random weights, in float32 on the CPU."""
    return build_random_policy(
        tiny_architecture(settings), tokenizer=build_tokenizer(), seed=seed, dtype=torch.float32
    )


def tiny_architecture(settings: TinySettings) -> dict[str, Any]:
    """What the built-in model is built from: model_type and the keys of its config.json."""
    return {
        "model_type": "qwen3",
        "hidden_size": settings.hidden_size,
        "num_hidden_layers": settings.num_layers,
        "num_attention_heads": settings.num_heads,
        "num_key_value_heads": settings.num_key_value_heads,
        "head_dim": settings.head_dim,
        "intermediate_size": settings.feed_forward_size,
        "initializer_range": settings.initializer_range,
        "max_position_embeddings": settings.context_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "vocab_size": len(TOKENS),
    }
