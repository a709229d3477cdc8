"""The optimizer, its learning-rate schedule and gradient clipping, and its state as plain tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from atrium.base.errors import CheckpointError
from atrium.models.shards import full_tensor
from atrium.train.settings import AdamWSettings, learning_rate_at
from atrium.train.update.host_optimizer import HostCopies
from atrium.train.update.optimizer_kinds import PER_BLOCK, build_adamw, restore_state, state_of


class PolicyOptimizer:
    """AdamW over a model's trainable parameters, on the model's device.

    The learning-rate schedule ends after `num_steps` training steps. With `offload`, the state and copies of
    the parameters are in main memory, and updates are computed there.
    """

    def __init__(
        self, model: nn.Module, settings: AdamWSettings, *, num_steps: int, offload: bool = False
    ) -> None:
        self.settings = settings
        self.num_steps = num_steps
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._host = HostCopies(self._parameters) if offload else None
        self._updated = self._parameters if self._host is None else self._host.parameters
        self._adamw = build_adamw(settings, self._updated.values())

    @property
    def memory_advice(self) -> str:
        """The settings to change if the optimizer runs out of memory."""
        may_move = self._host is None and any(value.is_cuda for value in self._parameters.values())
        first = "set compute.offload=true, " if may_move and self.settings.kind == "adamw" else ""
        return f"{first}choose a smaller model, or a device with more memory"

    def zero_grad(self) -> None:
        """Set the gradients of all trained parameters to None."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def clip_gradient(self) -> float:
        """Scale the gradient down to `max_grad_norm`; return its norm before clipping.

        If the norm is not finite, or not above the limit, the gradient is unchanged.
        """
        limit = math.inf if self.settings.max_grad_norm is None else self.settings.max_grad_norm
        gradients = [value for value in self.gradients().values() if value is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        measured = float(norm)
        if limit < measured < math.inf:
            torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), limit, norm)
        return measured

    def gradients(self) -> dict[str, Tensor | None]:
        """Return each parameter's gradient by name, or None if there is none."""
        return {name: parameter.grad for name, parameter in self._parameters.items()}

    def step(self, step: int) -> float:
        """Apply the gradient at the learning rate of training step `step`; return this learning rate."""
        learning_rate = learning_rate_at(step, self.settings, self.num_steps)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        if self._host is None:
            self._adamw.step()
        else:
            self._host.take_gradients()
            self._adamw.step()
            self._host.give_weights()
        return learning_rate

    def state(self) -> dict[str, Tensor]:
        """Return every tensor of the optimizer's state, named `<parameter>/<quantity>`."""
        return {
            f"{name}/{quantity}": value
            for name, parameter in self._updated.items()
            for quantity, value in state_of(self._adamw, parameter).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load a state returned by `state`.

        Raises `CheckpointError` if it contains a parameter that the model lacks, or a tensor of another
        shape. Parameters that are missing from it start without a state.
        """
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, quantity = key.rsplit("/", 1)
            if name not in self._parameters:
                raise CheckpointError(
                    f"the optimizer state contains {name}, which the model does not have; resume with "
                    "the settings of the checkpoint"
                )
            shape = self._parameters[name].shape
            is_per_weight = value.dim() > 0 and not quantity.startswith(PER_BLOCK)
            if is_per_weight and value.shape != shape:
                raise CheckpointError(
                    f"the optimizer state of {name} has shape {tuple(value.shape)}, expected "
                    f"{tuple(shape)}; resume with the settings of the checkpoint"
                )
            by_parameter.setdefault(name, {})[quantity] = value
        for name, quantities in by_parameter.items():
            restore_state(self._adamw, self._updated[name], quantities)
