"""A policy whose parameters, gradients and optimizer state are sharded over ranks, by FSDP2.

Each decoder block is a unit, and the rest (embeddings, last norm, head) is another: its parameters are
gathered while it computes, and shards (`DTensor`) at all other times. Gradients are summed over ranks, not
averaged, because a loss is additive over micro-batches on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from transformers import PreTrainedModel

from atrium.models.blocks import known_blocks


class _Root(nn.Module):
    """The unit of everything outside blocks; it runs any function with gathered parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
        """Return the result of `compute`."""
        # Copies of the tensors that autograd sees: the hook that gathers parameters for the backward pass is
        # attached to them, and would be lost if a view were changed in place.
        return tuple(x if x is None or not x.requires_grad else x.clone() for x in compute())


@dataclass(frozen=True, kw_only=True)
class ShardedModel:
    """Runs a sharded model. `device` and `dtype` are those of its computation."""

    root: _Root
    device: torch.device
    dtype: torch.dtype

    def run(self, compute: Callable[[], tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
        """Return the result of `compute`, with gradients, called with gathered embeddings and head.

        All ranks must call it equally often, since it exchanges parameters.
        """
        found: tuple[Tensor | None, ...] = self.root(compute)
        if not torch.is_grad_enabled() and isinstance(self.root, FSDPModule):
            # No backward pass follows that would shard the root again.
            self.root.reshard()
        return found


def shard(
    model: PreTrainedModel, *, device: str, dtype: torch.dtype, num_ranks: int, offload: bool = False
) -> ShardedModel:
    """Shard the parameters of `model` over all ranks, in place.

    They keep their dtype and compute in `dtype`; gradients are added in float32 or more.

    With `offload`, shards, gradients and the optimizer's state are in the host's memory. Raises `ConfigError`
    for a model whose blocks are unknown.
    """
    blocks = known_blocks(model, "sharding a model over ranks", "train it with one process")
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.promote_types(dtype, torch.float32),
        cast_forward_inputs=False,
    )
    kind = "cuda" if device.startswith("cuda") else "cpu"
    root = _Root(model)
    mesh = init_device_mesh(kind, (num_ranks,))
    place = CPUOffloadPolicy() if offload and kind == "cuda" else OffloadPolicy()
    for module in (*blocks, root):  # inner modules first
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=place)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    here = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    return ShardedModel(root=root, device=here, dtype=dtype)
