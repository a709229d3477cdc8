"""Tensors that may be sharded over processes (`DTensor`): the full tensor, and the part that is here.

A plain tensor is its own full tensor and its own part, so code that handles weights is the same on one
process, where nothing of torch.distributed is loaded.
"""

from __future__ import annotations

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is sharded over processes."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor put together; all processes that hold parts of it call this in the same order."""
    if not is_sharded(tensor):
        return tensor
    # Parts that are kept on the host are exchanged by the devices.
    found: Tensor = tensor.to(tensor.device_mesh.device_type).full_tensor()  # type: ignore[attr-defined]
    return found


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of the tensor that is in this process."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
