"""The reference policy of a regularizer: a frozen copy of the policy that moves when its rule says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class MovingReference:
    """A model that holds the reference's weights.

    `every_num_steps` None keeps it frozen at the policy that training began with; otherwise it becomes
    the policy after every so many steps.
    """

    model: nn.Module
    every_num_steps: int | None

    def after_step(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Move to the policy's weights if the rule says so after this step."""
        if self.every_num_steps is not None and step % self.every_num_steps == 0:
            self.load(weights)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        with torch.no_grad():
            self.model.load_state_dict(weights, strict=False)

    def saved_weights(self) -> dict[str, Tensor] | None:
        """What a checkpoint must hold: the parameters of a reference that moves, None for a frozen one."""
        if self.every_num_steps is None:
            return None
        return dict(self.model.named_parameters())
