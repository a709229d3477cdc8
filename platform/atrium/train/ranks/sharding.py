"""A policy whose parameters, gradients and optimizer state are sharded over ranks, by FSDP2.

Each decoder block is a unit, and the rest (embeddings, last norm, head) is another. A unit's parameters
are gathered while the unit computes, and sharded (`DTensor`) at all other times. Gradients are summed over
ranks, not averaged, because a loss is additive over micro-batches on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
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
    """The FSDP unit of all parameters outside blocks. It calls functions with its parameters gathered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
        """Return the tensors that `compute` returns, but copy those that require a gradient."""
        # Copies of the tensors that autograd sees: the hook that gathers parameters for the backward pass is
        # attached to them, and would be lost if a view were changed in place.
        return tuple(x if x is None or not x.requires_grad else x.clone() for x in compute())


@dataclass(frozen=True, kw_only=True)
class ShardedModel:
    """A sharded model, which computes on `device` in `dtype`.

    With `exchanges_once`, each rank sums its gradients over the micro-batches of a minibatch, and the ranks
    exchange the sum after the last micro-batch. Otherwise they exchange gradients after each micro-batch.
    """

    root: _Root
    device: torch.device
    dtype: torch.dtype
    exchanges_once: bool = False

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Set whether the next backward pass exchanges gradients between ranks.

        With `exchanges_once`, only the pass of the last micro-batch (`is_last`) exchanges them. Otherwise,
        every pass does.
        """
        if self.exchanges_once and isinstance(self.root, FSDPModule):
            self.root.set_requires_gradient_sync(is_last)

    def run(self, compute: Callable[[], tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
        """Call `compute` while embeddings, last norm and LM head are gathered, and return its tensors.

        The tensors can be differentiated if gradients are enabled in torch. All ranks must call this equally
        often, since each call exchanges parameters.
        """
        found: tuple[Tensor | None, ...] = self.root(compute)
        if not torch.is_grad_enabled() and isinstance(self.root, FSDPModule):
            # No backward pass follows that would shard the root again.
            self.root.reshard()
        return found


def mesh_of(device: str, num_ranks: int, num_shards: int) -> DeviceMesh:
    """Return the device mesh: [ranks], or [replicas, shards] if `num_shards` is less than `num_ranks`."""
    kind = "cuda" if device.startswith("cuda") else "cpu"
    if num_shards == num_ranks:
        return init_device_mesh(kind, (num_ranks,))
    shape = (num_ranks // num_shards, num_shards)
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))


def shard(
    model: PreTrainedModel,
    mesh: DeviceMesh,
    *,
    dtype: torch.dtype,
    offload: bool = False,
    exchanges_once: bool = False,
) -> ShardedModel:
    """Shard the parameters of `model` over a mesh of all ranks, in place.

    The parameters keep their dtype, passes compute in `dtype`, and gradients are summed in float32 or more.
    Parameters without values (on the device `meta`) get uninitialized memory for their shards (`receiving`
    fills it).

    With `offload`, shards, gradients and the optimizer's state are in the host's memory. Raises `ConfigError`
    for a model whose blocks are unknown.
    """
    blocks = known_blocks(model, "sharding a model over ranks", "train it with one process")
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.promote_types(dtype, torch.float32),
        cast_forward_inputs=False,
    )
    kind = mesh.device_type
    root = _Root(model)
    offload = offload and kind == "cuda"
    place = CPUOffloadPolicy() if offload else OffloadPolicy()
    for module in (*blocks, root):  # inner modules first
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=place)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    here = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    of_shards = torch.device("cpu") if offload else here
    # Not `to_empty`, which would discard the values of buffers.
    root._apply(  # type: ignore[no-untyped-call]
        lambda one: torch.empty_like(one, device=of_shards) if one.is_meta else one
    )
    return ShardedModel(root=root, device=here, dtype=dtype, exchanges_once=exchanges_once)
