"""Tensors that may be spread over processes (`DTensor`): putting them together, and the part that is here.

A plain tensor is its own whole and its own part, so code that handles weights is the same on one process,
where nothing of torch.distributed is loaded.
"""

from __future__ import annotations

from torch import Tensor


def is_spread(tensor: Tensor) -> bool:
    """Whether the tensor is spread over processes."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The tensor put together; all processes that hold parts of it call this in the same order."""
    if not is_spread(tensor):
        return tensor
    # Parts that are kept on the host are exchanged by the devices.
    found: Tensor = tensor.to(tensor.device_mesh.device_type).full_tensor()  # type: ignore[attr-defined]
    return found


def own_part(tensor: Tensor) -> Tensor:
    """The part of the tensor that is in this process."""
    return tensor.to_local() if is_spread(tensor) else tensor  # type: ignore[attr-defined]
