"""Models whose parameters have shapes but no values. Ranks hold such a model until they receive their shards.

Buffers, such as the frequencies of rotary embeddings, always have values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def take_weights(model: nn.Module) -> dict[str, Tensor]:
    """Remove the values of all parameters, in place, and return them by name; tied parameters appear once."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    _replace(model, lambda value: value.to("meta"))
    return weights


def on_device(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """Move a model to a device, in place; parameters without values get uninitialized memory on it."""
    _replace(model, lambda value: torch.empty_like(value, device=device) if value.is_meta else value)
    return model.to(device)


def _replace(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Pass every parameter through `make` and replace it with the result; tied parameters stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter not in made:
                made[parameter] = nn.Parameter(make(parameter.detach()), parameter.requires_grad)
            module.register_parameter(name, made[parameter])
