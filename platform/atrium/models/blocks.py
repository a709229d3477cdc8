"""The decoder of a model, and its blocks: the units that are compiled, recomputed, or sharded."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from atrium.base.errors import ConfigError


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """Return the part of a causal language model that computes the last states, without the LM head."""
    decoder: nn.Module = model.base_model
    if decoder is model:  # Llama4ForCausalLM names its base like the model with images
        decoder = next((child for child in model.children() if isinstance(child, PreTrainedModel)), model)
    return decoder


def decoder_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """Return the blocks in the model's order; none if the architecture does not declare them."""
    names = set(model._no_split_modules or ())
    # By any of a block's classes: FSDP2 derives a class from each.
    return [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]


def known_blocks(model: PreTrainedModel, what: str, remedy: str) -> list[nn.Module]:
    """Return the blocks; raises `ConfigError`, which names `what` needs them, if they are unknown."""
    if not (blocks := decoder_blocks(model)):
        raise ConfigError(
            f"{what}: model of type {type(model).__name__} does not declare its blocks; {remedy}"
        )
    return blocks
