"""The shape of a model, read from its configuration alone: no weights are loaded or made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from atrium.models.sources import buildable, locate, quiet, readable


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What memory depends on. Tied parameters count once; `context_length` is in tokens.

    `linear_maps` are those in the layers: the last part of each one's name, its inputs and its outputs.
    """

    model_type: str
    num_parameters: int
    num_tensors: int
    num_layers: int
    hidden_size: int
    feed_forward_size: int
    vocabulary_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    context_length: int
    linear_maps: tuple[tuple[str, int, int], ...]


def hub_architecture(source: str, revision: str | None = None) -> Architecture:
    """The architecture of a Hub id or a local folder; raises as `load_policy` does."""
    location = locate(source, revision)
    with quiet(), readable(location):
        config = AutoConfig.from_pretrained(location, revision=revision or "main", trust_remote_code=False)
        return _described(config)


def random_architecture(settings: Mapping[str, Any]) -> Architecture:
    """The architecture that `build_random_policy` builds from the same settings; raises as it does."""
    with quiet(), buildable(settings):
        return _described(AutoConfig.for_model(**settings))


def _described(config: PreTrainedConfig) -> Architecture:
    text = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    num_heads = text.num_attention_heads
    return Architecture(
        model_type=text.model_type,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_tensors=sum(1 for _ in model.parameters()),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        # GPT-2 and its like have no name for it: four times the width.
        feed_forward_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocabulary_size=text.vocab_size,
        num_heads=num_heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or num_heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
        context_length=text.max_position_embeddings,
        linear_maps=tuple(
            (name.rpartition(".")[2], module.in_features, module.out_features)
            for name, module in model.base_model.named_modules()
            if isinstance(module, nn.Linear)
        ),
    )
