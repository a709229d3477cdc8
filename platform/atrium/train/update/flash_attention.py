"""Replacement of torch's FlashAttention 2 by FlashAttention 3, for all later calls in this process."""

from __future__ import annotations

import torch
from torch.nn import attention

from atrium.base.errors import ConfigError

_HOPPER = (9, 0)
"""The compute capability that torch's registration of FlashAttention 3 accepts."""


def use_flash_attention_3() -> None:
    """Make torch's attention call FlashAttention 3; raise `ConfigError` with the reason if it cannot."""
    reason = None
    if not hasattr(attention, "activate_flash_attention_impl"):
        reason = f"torch {torch.__version__} cannot replace its own FlashAttention"
    elif (found := torch.cuda.get_device_capability()) != _HOPPER:
        reason = f"FlashAttention 3 requires compute capability 9.0, but this GPU has {found[0]}.{found[1]}"
    else:
        try:
            attention.activate_flash_attention_impl("FA3")
        except (ImportError, OSError, RuntimeError) as error:
            reason = f"the package flash_attn_interface cannot be loaded ({error})"
    if reason is not None:
        raise ConfigError(
            f"compute.flash_attention=3 cannot be used: {reason}; use compute.flash_attention=2"
        )
