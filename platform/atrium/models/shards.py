"""Tensors that may be sharded over processes (`DTensor`): the full tensor, and the local part.

A plain tensor is its own full tensor and its own local part, so code that handles weights is the same on one
process, where nothing of torch.distributed is loaded.
"""

from __future__ import annotations

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the tensor is sharded over processes."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather the full tensor; all processes that hold parts of it must call this in the same order."""
    if not is_sharded(tensor):
        return tensor
    # Parts on the host are exchanged through the devices.
    found: Tensor = tensor.to(tensor.device_mesh.device_type).full_tensor()  # type: ignore[attr-defined]
    return found


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the part of the tensor in this process."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
