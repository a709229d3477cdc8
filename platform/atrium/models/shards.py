"""Access to the full tensor and the local part of a tensor that may be sharded over processes (`DTensor`).

A plain tensor is its own full tensor and its own local part. The same code therefore handles weights in a
single process, where torch.distributed is not loaded.
"""

from __future__ import annotations

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the tensor is sharded over processes."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor, gathered from all processes if it is sharded.

    All processes that hold parts of sharded tensors must request these tensors in the same order.
    """
    if not is_sharded(tensor):
        return tensor
    # Parts on the host must first be moved to the devices that exchange them.
    found: Tensor = tensor.to(tensor.device_mesh.device_type).full_tensor()  # type: ignore[attr-defined]
    return found


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the part of the tensor in this process."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def sharded_like(full: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor over processes in the same way as `like`, without communication.

    The full tensor must be equal in all processes. If `like` is not sharded, `full` itself is returned.
    """
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(full, mesh, placements, src_data_rank=None).to(like.device)
