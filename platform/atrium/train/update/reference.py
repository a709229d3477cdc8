"""The reference policy of a regularizer: a model of its own, which follows the policy by the method's rule.

A reference that stays at the beginning needs no model of its own where only adapters are trained.
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
    """A model that holds the reference's weights.

    `moves` is False for a reference that stays at the policy that training began with; a checkpoint then
    need not hold it. How far it moves after a step is said by `atrium.method.references`.
    """

    model: nn.Module
    moves: bool

    def follow(self, weights: Mapping[str, Tensor], share: float) -> None:
        """Take over a share of the policy's weights: 0 nothing, 1 all, between a weighted mean."""
        if share == 1.0:
            self.load(weights)
        elif share > 0.0:
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.lerp_(weights[name].to(parameter), share)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        with torch.no_grad():
            self.model.load_state_dict(weights, strict=False)

    def saved_weights(self) -> dict[str, Tensor] | None:
        """The weights for a checkpoint: the parameters of a reference that moves, None for a frozen one."""
        return dict(self.model.named_parameters()) if self.moves else None


class UnadaptedForward(PolicyForward):
    """The forward pass of the policy without its adapters: of the model that training began with."""

    def __call__(self, rows: RolloutRows, *, entropy: Entropy) -> PolicyTokens:
        """As the policy's own, with adapters off."""
        with adapters_off(self.model):
            return super().__call__(rows, entropy=entropy)
