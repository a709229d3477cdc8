"""The decoder blocks of a model: the units that are compiled, computed again, or spread over ranks."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def decoder_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks in the model's order; none where the architecture does not say what its blocks are."""
    names = set(model._no_split_modules or ())
    # By any of a block's classes: FSDP2 makes a class of its own of each.
    return [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]
