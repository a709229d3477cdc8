"""The names, types and shapes of the weights that `vllm_transfer` sends."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor's name, type and shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
