"""Decoder blocks that keep only their inputs for the backward pass, and recompute the rest.

Activations then take the memory of one block, plus the states between blocks; an update computes one more
forward pass. Values and gradients equal those of blocks that keep their activations.

Source: sublinear memory by checkpoints, arXiv 1604.06174, with one segment per block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from atrium.models.blocks import known_blocks
from atrium.train.update.packed_attention import attention_of

_COMPILED = "_compiled_call_impl"
"""Attribute in which torch keeps the function that a compiled module calls instead of `forward`."""


class RecomputedBlocks:
    """The blocks of a model, which keep only their inputs if a pass with a gradient runs inside `used`.

    Raises `ConfigError` for a model whose blocks are unknown.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        setting = "compute.recompute_activations"
        self._blocks = known_blocks(model, f"{setting}=true", f"set {setting}=false")

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make the blocks keep only their inputs within the body; no effect without gradients."""
        if not torch.is_grad_enabled():
            yield
            return
        # The computation of `forward`, so that hooks stay outside: FSDP2 gathers a block's weights in them.
        attributes = ["forward" if block._compiled_call_impl is None else _COMPILED for block in self._blocks]
        before = [block.__dict__.get(name) for block, name in zip(self._blocks, attributes, strict=True)]
        for block, name in zip(self._blocks, attributes, strict=True):
            setattr(block, name, self._recomputed(getattr(block, name)))
        try:
            yield
        finally:
            for block, name, value in zip(self._blocks, attributes, before, strict=True):
                if value is None:
                    delattr(block, name)
                else:
                    setattr(block, name, value)

    def _recomputed(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a block's own
            implementation = self._model.config._attn_implementation

            def compute_again(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a block's own
                # In the backward pass the model would use another attention than in the forward pass.
                with attention_of(self._model, implementation):
                    return compute(*args, **kwargs)

            # Blocks draw no random numbers; only their arguments are kept for the backward pass.
            return checkpoint(compute_again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

        return call
