"""The residual stream of passes under autocast, kept in the autocast dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def keep_stream_half(model: nn.Module) -> None:
    """Round the outputs of the model's embeddings and norms to the autocast dtype while autocast is enabled.

    The weights of these modules are float32. Under autocast alone, their outputs would be float32 too, and
    with them the residual stream, queries and keys. With rounding, a pass computes the same as a model whose
    weights are stored in the autocast dtype (as in vLLM), if the norms' weights are representable in that
    dtype. Repeated calls have no further effect.
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
