"""Copies of the parameters in main memory, updated there by an optimizer.

The GPU then stores only weights and gradients. Each update moves gradients to the host and weights back. The
CPU computes the same formula as a GPU would, with different rounding.

Source: ZeRO-Offload, arXiv 2101.06840, without its overlap of transfers and computation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class HostCopies:
    """Copies of the parameters by name, in pinned memory if the parameters are on a GPU."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._on_device = dict(parameters)
        self.parameters = {
            name: nn.Parameter(_copied(parameter.detach())) for name, parameter in parameters.items()
        }

    def take_gradients(self) -> None:
        """Copy the parameters' gradients to the host copies; a missing gradient becomes None."""
        for name, copy in self.parameters.items():
            gradient = self._on_device[name].grad
            if gradient is None:
                copy.grad = None
            elif copy.grad is None:
                copy.grad = _copied(gradient)
            else:
                copy.grad.copy_(gradient)

    def give_weights(self) -> None:
        """Copy the updated weights from the host copies back to the parameters."""
        with torch.no_grad():
            for name, copy in self.parameters.items():
                self._on_device[name].copy_(copy)


def _copied(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    return host.copy_(tensor)
