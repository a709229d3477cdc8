"""Decoder blocks compiled by torch, for the passes of an update only.

Compiled blocks are active only inside `CompiledBlocks.used`. An engine that samples with the trainer's module
uses the uncompiled blocks, because the shapes of its inputs change with every token.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from transformers import PreTrainedModel

from atrium.base.compilers import missing_compilers
from atrium.base.errors import ConfigError
from atrium.models.blocks import forwards_replaced, known_blocks


class CompiledBlocks:
    """The blocks of a model, compiled at first use (about a minute) for sequences of any length.

    Only `forward` is compiled, without hooks. Tests use backends of `torch.compile` other than `inductor`.
    Raises `ConfigError` for a model whose blocks are unknown, and if the compiler that `inductor` needs is
    not installed.
    """

    def __init__(self, model: PreTrainedModel, backend: str = "inductor") -> None:
        self._blocks = known_blocks(model, "compute.compile=true", "set compute.compile=false")
        missing = missing_compilers(model.device.type) if backend == "inductor" else []
        if missing:
            raise ConfigError(
                f"compute.compile=true requires {' and '.join(missing)}, not found on this "
                "machine; install what is missing, or set compute.compile=false"
            )
        self._calls = [torch.compile(block.forward, dynamic=True, backend=backend) for block in self._blocks]

    def used(self) -> AbstractContextManager[None]:
        """Return a context manager within which the model calls its compiled blocks."""
        return forwards_replaced(self._blocks, self._calls)
