"""Decoder blocks that keep only their inputs for the backward pass, and recompute the rest.

Activations then take the memory of one block, plus the states between blocks, and an update computes one more
forward pass. Values and gradients equal those of blocks that keep their activations.

Source: sublinear memory by checkpoints, arXiv 1604.06174, with one segment per block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from atrium.models.blocks import forwards_replaced, known_blocks
from atrium.train.update.packed_attention import attention_of


class RecomputedBlocks:
    """A model's blocks, which keep only their inputs in passes that run inside `used` with gradients enabled.

    Raises `ConfigError` for a model whose blocks are unknown.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        setting = "compute.recompute_activations"
        self._blocks = known_blocks(model, f"{setting}=true", f"set {setting}=false")

    def used(self) -> AbstractContextManager[None]:
        """Return a context manager within which the blocks keep only their inputs.

        It has no effect if torch's gradients are disabled. Compiled blocks stay compiled.
        """
        if not torch.is_grad_enabled():
            return nullcontext()
        return forwards_replaced(self._blocks, [self._recomputed(block.forward) for block in self._blocks])

    def _recomputed(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a block's own
            implementation = self._model.config._attn_implementation

            def compute_again(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a block's own
                # Without this, the backward pass would recompute with the model's default attention.
                with attention_of(self._model, implementation):
                    return compute(*args, **kwargs)

            # Blocks draw no random numbers; only their arguments are kept for the backward pass.
            return checkpoint(compute_again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

        return call
