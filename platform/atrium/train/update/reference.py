"""The reference policy of a regularizer: a separate model that follows the policy by the method's rule.

If only adapters are trained, a frozen reference requires no separate model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atrium.engines.collate import RolloutRows
from atrium.method.batch import PolicyTokens
from atrium.models.lora import adapters_off
from atrium.train.update.forward import PolicyForward
from atrium.train.update.token_logprobs import Entropy


@dataclass(frozen=True, kw_only=True)
class MovingReference:
    """A model with the reference's weights.

    `moves` is False if the reference stays at the initial policy. Checkpoints then do not contain it.
    `atrium.method.references` determines how far the reference moves after a step.
    """

    model: nn.Module
    moves: bool

    def follow(self, weights: Mapping[str, Tensor], share: float) -> None:
        """Move the reference by `share` of its distance to the policy: 0 keeps it, 1 copies the policy."""
        if share == 1.0:
            self.load(weights)
        elif share > 0.0:
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.lerp_(weights[name].to(parameter), share)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the reference's weights by `weights`, which have the same names."""
        with torch.no_grad():
            self.model.load_state_dict(weights, strict=False)

    def saved_weights(self) -> dict[str, Tensor] | None:
        """Return the weights for a checkpoint: a moving reference's parameters, None for a frozen one."""
        return dict(self.model.named_parameters()) if self.moves else None


class UnadaptedForward(PolicyForward):
    """The forward pass of the policy without its adapters, that is, of the initial model."""

    def __call__(self, rows: RolloutRows, *, entropy: Entropy) -> PolicyTokens:
        """Return the results of the policy's forward pass with its adapters turned off."""
        with adapters_off(self.model):
            return super().__call__(rows, entropy=entropy)
