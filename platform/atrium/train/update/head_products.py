"""Matrix products of the LM head, with or without rounding to the dtype of their operands.

Axes: M tokens, D width of the model, V vocabulary or a part of it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def head_product(state_MD: Tensor, weight_VD: Tensor, *, exact: bool) -> Tensor:
    """Return the logits [M, V] in the states' dtype; with `exact`, in at least float32."""
    dtype = torch.promote_types(state_MD.dtype, torch.float32) if exact else state_MD.dtype
    return unrounded_product(state_MD, weight_VD.t(), dtype)


def unrounded_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the product of two matrices in `dtype`, without first rounding it to the matrices' dtype."""
    if left.dtype == dtype:
        return left @ right
    if left.device.type == "cuda":
        return torch.mm(left, right, out_dtype=dtype)
    return left.to(dtype) @ right.to(dtype)
