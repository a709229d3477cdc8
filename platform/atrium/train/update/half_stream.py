"""The residual stream of passes under autocast, kept in the dtype that they compute in."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def keep_stream_half(model: nn.Module) -> None:
    """Round the outputs of the model's embeddings and norms to autocast's dtype, wherever it is enabled.

    Their weights are float32, so that under autocast alone their outputs are, and with them the residual
    stream, queries and keys. Rounded, a pass computes what the model held in that dtype would, as vLLM holds
    it, where its norms' weights are numbers of that dtype. Called again, it changes nothing.
    """
    for module in model.modules():
        is_norm = not any(True for _ in module.children()) and _has_vector(module)
        is_rounded = _rounded in module._forward_hooks.values()
        if (is_norm or isinstance(module, nn.Embedding)) and not is_rounded:
            module.register_forward_hook(_rounded)


def _has_vector(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 1


def _rounded(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> Tensor:
    kind = output.device.type
    return output.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else output
