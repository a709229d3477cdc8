"""The decoder of a model, and its blocks: the units that are compiled, recomputed, or spread over ranks."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from atrium.base.errors import ConfigError


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The part of a causal language model that computes the last states, without the LM head."""
    decoder: nn.Module = model.base_model
    if decoder is model:  # Llama4ForCausalLM names its base as the model with images does
        decoder = next((child for child in model.children() if isinstance(child, PreTrainedModel)), model)
    return decoder


def decoder_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks in the model's order; none where the architecture does not say what its blocks are."""
    names = set(model._no_split_modules or ())
    # By any of a block's classes: FSDP2 makes a class of its own of each.
    return [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]


def known_blocks(model: PreTrainedModel, what: str, remedy: str) -> list[nn.Module]:
    """The blocks; raises `ConfigError`, which names what needs them, where they are not known."""
    if not (blocks := decoder_blocks(model)):
        raise ConfigError(
            f"{what}: model of type {type(model).__name__} does not say what its blocks are; {remedy}"
        )
    return blocks
