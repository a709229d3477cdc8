r"""The built-in policy: a Qwen3 model of 100,480 parameters and a tokenizer of 28 tokens.

Both are ordinary transformers objects that are created locally. The model has random weights until `warmup`
trains it on the built-in task. The tokenizer works on characters, except that `\boxed{` is one token.
"""

from __future__ import annotations

import re

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from atrium.models.policy import Policy, build_random_policy
from atrium.models.settings import TOKENS, TinySettings

PIECE = re.compile(r"\\boxed\{|[\s\S]")
"""Pattern that splits text without special tokens into tokens."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<a>' + message['content'] + '<eos>' }}"
    "{% else %}{{ '<q>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerBase:
    r"""Build the 28-token tokenizer; its chat template gives `<q>7+8=<a>7+8=15;\boxed{15}<eos>`."""
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
    """Build the built-in model with random weights, in float32 on the CPU."""
    return build_random_policy(
        settings.architecture, tokenizer=build_tokenizer(), seed=seed, dtype=torch.float32
    )
