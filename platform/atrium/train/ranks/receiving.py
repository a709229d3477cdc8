"""Transfer of a model from rank 0, which has loaded it, to the other ranks: buffers and parameter shards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atrium.models.shards import local_tensor
from atrium.train.ranks.connected_ranks import ConnectedRanks


def receive_shards(model: nn.Module, whole: dict[str, Tensor], ranks: ConnectedRanks) -> None:
    """Fill the shards of all parameters from rank 0, one parameter at a time.

    On rank 0, `whole` contains the full parameters by name, which are removed as they are sent. On other
    ranks it is empty, and no more than the rank's part of each parameter is ever in memory.
    """
    for name, parameter in model.named_parameters():
        local, num_shards = local_tensor(parameter.detach()), parameter.device_mesh.size(-1)  # type: ignore[attr-defined]
        num_rows = -(-len(parameter) // num_shards)
        own = local.new_empty((num_rows, *parameter.shape[1:]))
        parts: Sequence[Tensor] = ()
        if ranks.is_first:
            full = whole.pop(name).to(local.device)
            padding = full.new_zeros((num_rows * num_shards - len(full), *full.shape[1:]))
            rows = full if not len(padding) else torch.cat([full, padding])
            parts = rows.split(num_rows) * (ranks.size // num_shards)
        ranks.scatter(own, parts)
        local.copy_(own[: len(local)])


def receive_buffers(model: nn.Module, ranks: ConnectedRanks) -> None:
    """Replace the model's buffers on all ranks by those of rank 0, in the host's memory."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            own = buffer.to("cpu", copy=True) if ranks.is_first else torch.empty_like(buffer, device="cpu")
            ranks.scatter(own, [own.clone()] * ranks.size if ranks.is_first else ())
            module._buffers[name] = own
