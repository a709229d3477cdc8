"""A policy's weights in memory that the processes of a run share: written by one, read by its engines.

The memory has no name: a process has it by inheritance only, and it is gone with the last of them (Linux).
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atrium.models.shards import full_tensor
from atrium.rollout.weights import check_weights

_ALIGNMENT = 64

Memory = mmap.mmap | NDArray[np.uint8]
"""What weights lie in, byte after byte."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies, in bytes from the beginning."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self.dtype.itemsize * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A file descriptor; as an argument of a new process it is one of the same file there."""

    number: int

    def __reduce__(self) -> tuple[Callable[..., Descriptor], tuple[Any, ...]]:
        return _inherited, (DupFd(self.number),)


def _inherited(descriptor: Any) -> Descriptor:  # noqa: ANN401 - as multiprocessing wraps it
    return Descriptor(descriptor.detach())


def tensors_in(memory: Memory, places: Sequence[TensorPlace]) -> dict[str, Tensor]:
    """The tensors at `places` of the memory by name, as views of it; where it is read-only, so are they."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return {
            place.name: torch.frombuffer(
                memory, dtype=place.dtype, count=prod(place.shape), offset=place.offset
            ).view(place.shape)
            for place in places
        }


class SharedWeights:
    """A full `state_dict` in memory without a name, as one process writes it and others read it.

    Attributes
    ----------
    descriptor
        What others open the memory by.
    memory
        All of it.
    places
        Where each tensor lies in it.
    """

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
        """Memory for weights of these names, shapes and types, with their values.

        With `dtype` those that are fractions are rounded to it.
        """
        places, offset = [], 0
        for name, weight in weights.items():
            kept = dtype if dtype is not None and weight.is_floating_point() else weight.dtype
            places.append(TensorPlace(name, kept, tuple(weight.shape), offset))
            offset += -(-places[-1].num_bytes // _ALIGNMENT) * _ALIGNMENT
        number = os.memfd_create("weights")
        os.ftruncate(number, offset)
        self.descriptor = Descriptor(number)
        self.memory = mmap.mmap(number, 0)
        self.places = tuple(places)
        self._tensors = tensors_in(self.memory, places)
        self.write(weights)

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Take over values; raises `EngineError`, with nothing changed, for other names or shapes."""
        check_weights(self._tensors, weights)
        with torch.no_grad():
            for name, target in self._tensors.items():
                target.copy_(full_tensor(weights[name]))

    def close(self) -> None:
        """Let no more processes have the memory; it is freed with the last tensor."""
        os.close(self.descriptor.number)
