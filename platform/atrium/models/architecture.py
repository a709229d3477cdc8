"""The shape of any model that transformers knows, from its configuration alone, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from atrium.models.blocks import decoder_of
from atrium.models.context import Context
from atrium.models.settings import TOKENS
from atrium.models.shape import ModelShape
from atrium.models.sources import buildable, locate, quiet, readable


def hub_shape(source: str, revision: str | None = None) -> ModelShape:
    """Return the shape of the model at a Hub id or in a local folder.

    Raises the errors of `load_policy` for a source or configuration that cannot be read.
    """
    location = locate(source, revision)
    with quiet(), readable(location):
        config = AutoConfig.from_pretrained(location, revision=revision or "main", trust_remote_code=False)
        return _shape(config)


def random_shape(architecture: Mapping[str, Any]) -> ModelShape:
    """Return the shape of the model with the given architecture and random weights.

    If `vocab_size` is missing, the size of the built-in tokenizer's vocabulary is used. Raises `ConfigError`
    if `model_type` is missing, or if transformers does not know or cannot build the architecture.
    """
    # The padding token of the model type may be outside of a smaller vocabulary.
    settings = {"vocab_size": len(TOKENS), **architecture, "pad_token_id": TOKENS.index("<pad>")}
    with quiet(), buildable(architecture):
        return _shape(AutoConfig.for_model(**settings))


def _shape(config: PreTrainedConfig) -> ModelShape:
    text = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # State-space models name their heads differently.
    num_heads = getattr(text, "num_attention_heads", None) or getattr(text, "num_heads", None) or 1
    return ModelShape(
        model_type=text.model_type,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_tensors=sum(1 for _ in model.parameters()),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        # GPT-2 and similar models have no key for this size, which is four times the width.
        feed_forward_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocabulary_size=text.vocab_size,
        num_heads=num_heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or num_heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
        context_length=Context.of(text.to_dict()).length,
        linear_maps=tuple(
            (name.rpartition(".")[2], module.in_features, module.out_features)
            for name, module in decoder_of(model).named_modules()
            if isinstance(module, nn.Linear)
        ),
    )
