"""Decoder blocks compiled by torch, for the passes of an update only.

An engine that samples with the trainer's module has other shapes at every token, so it keeps the plain
blocks: compiled ones are in place only inside `used`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from atrium.base.errors import ConfigError
from atrium.models.blocks import known_blocks

_COMPILERS = ("c++", "g++", "clang++")


class CompiledBlocks:
    """The blocks of a model, compiled at first use (about a minute) for sequences of any length.

    Raises `ConfigError` for a model whose blocks are unknown, and on a CPU without a compiler.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._blocks = known_blocks(model, "compute.compile=true", "set compute.compile=false")
        if model.device.type == "cpu" and not any(shutil.which(name) for name in _COMPILERS):
            raise ConfigError(
                f"compute.compile=true needs a C++ compiler on a CPU ({', '.join(_COMPILERS)}), but none "
                "is installed; install one, or set compute.compile=false"
            )
        for block in self._blocks:
            block.compile(dynamic=True)
        self._calls = [block._compiled_call_impl for block in self._blocks]
        _put(self._blocks, [None] * len(self._blocks))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make the model call its compiled blocks."""
        _put(self._blocks, self._calls)
        try:
            yield
        finally:
            _put(self._blocks, [None] * len(self._blocks))


def _put(blocks: Sequence[nn.Module], calls: Sequence[object]) -> None:
    for block, call in zip(blocks, calls, strict=True):
        block._compiled_call_impl = call  # type: ignore[assignment]
