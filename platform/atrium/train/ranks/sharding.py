"""A policy whose parameters, gradients and optimiser state are spread over ranks, by FSDP2.

Each decoder block is a unit, and what is left (embeddings, last norm, head) is another: its parameters are
whole while it computes, and shards (`DTensor`) at all other times. Gradients are summed over ranks, not
averaged, because a loss is additive over micro-batches wherever they are computed.
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
    """The unit that holds what no block holds; it computes whatever it is given, with whole parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
        """The result of `compute`."""
        # Copies of what autograd sees: the hook that gathers parameters for the backward pass hangs on them,
        # and would be lost where a view is changed in place.
        return tuple(x if x is None or not x.requires_grad else x.clone() for x in compute())


@dataclass(frozen=True, kw_only=True)
class ShardedModel:
    """Runs a sharded model. `device` is where it computes, `dtype` what in."""

    root: _Root
    device: torch.device
    dtype: torch.dtype

    def run(self, compute: Callable[[], tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
        """The result of `compute`, with gradients, called where the embeddings and the head are whole.

        All ranks call it equally often, since it exchanges parameters.
        """
        found: tuple[Tensor | None, ...] = self.root(compute)
        if not torch.is_grad_enabled() and isinstance(self.root, FSDPModule):
            # No backward pass follows that would shard the root again.
            self.root.reshard()
        return found


def shard(
    model: PreTrainedModel, *, device: str, dtype: torch.dtype, num_ranks: int, offload: bool = False
) -> ShardedModel:
    """Spread the parameters of `model` over all ranks, in place.

    They keep their dtype and compute in `dtype`; gradients are added in float32 or more.

    With `offload`, shards, gradients and the optimiser's state live in the host's memory. Raises
    `ConfigError` for a model whose blocks are not known.
    """
    blocks = known_blocks(model, "a model spread over ranks", "train it with one process")
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.promote_types(dtype, torch.float32),
        cast_forward_inputs=False,
    )
    kind = "cuda" if device.startswith("cuda") else "cpu"
    root = _Root(model)
    mesh = init_device_mesh(kind, (num_ranks,))
    place = CPUOffloadPolicy() if offload and kind == "cuda" else OffloadPolicy()
    for module in (*blocks, root):  # what is inside first
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=place)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    here = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    return ShardedModel(root=root, device=here, dtype=dtype)
