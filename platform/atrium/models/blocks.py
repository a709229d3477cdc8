"""The decoder of a model, and its blocks: the units that are compiled, recomputed, or sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from atrium.base.errors import ConfigError


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """Return the decoder of a causal language model: everything except the LM head."""
    decoder: nn.Module = model.base_model
    if decoder is model:  # as for Llama4ForCausalLM, whose base_model_prefix is that of the model with images
        decoder = next((child for child in model.children() if isinstance(child, PreTrainedModel)), model)
    return decoder


def decoder_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """Return the blocks in the model's order.

    The result is empty if the architecture does not declare them.
    """
    names = set(model._no_split_modules or ())
    # Base classes count too, because FSDP2 replaces a block's class by a derived class.
    return [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]


def known_blocks(model: PreTrainedModel, what: str, remedy: str) -> list[nn.Module]:
    """Return the model's decoder blocks; raise `ConfigError` if the architecture does not declare them.

    `what` is the setting that needs the blocks, and `remedy` the advice in the error message.
    """
    if not (blocks := decoder_blocks(model)):
        raise ConfigError(
            f"{what} requires a model that declares its blocks, but the model type "
            f"{type(model).__name__} does not; {remedy}"
        )
    return blocks


@contextmanager
def forwards_replaced(blocks: Sequence[nn.Module], calls: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Replace the `forward` of each block by its function in `calls`, until the `with` statement ends.

    The blocks' hooks still run before and after this function. FSDP2 gathers a block's weights in such hooks.
    """
    before = [block.__dict__.get("forward") for block in blocks]
    for block, call in zip(blocks, calls, strict=True):
        block.forward = call
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward
