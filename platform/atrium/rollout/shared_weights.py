"""A policy's weights in memory that the processes of a run share: written by one, read by its engines.

The memory has no name: a process has it by inheritance only, and it is gone with the last of them (Linux).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

from atrium.models.shards import full_tensor
from atrium.rollout.weights import check_weights

_ALIGNMENT = 64


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


class SharedWeights:
    """A full `state_dict` in the memory behind a descriptor, whose tensors lie at `places`."""

    def __init__(self, descriptor: Descriptor, places: Sequence[TensorPlace]) -> None:
        self.descriptor = descriptor
        self.places = tuple(places)
        memory = mmap.mmap(descriptor.number, 0)
        self.tensors: Mapping[str, Tensor] = {
            place.name: torch.frombuffer(
                memory, dtype=place.dtype, count=prod(place.shape), offset=place.offset
            ).view(place.shape)
            for place in self.places
        }
        """The weights by name, as views of the memory."""

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> SharedWeights:
        """Memory for weights of these names, shapes and types, with their values."""
        places, offset = [], 0
        for name, weight in weights.items():
            places.append(TensorPlace(name, weight.dtype, tuple(weight.shape), offset))
            offset += -(-places[-1].num_bytes // _ALIGNMENT) * _ALIGNMENT
        number = os.memfd_create("weights")
        os.ftruncate(number, offset)
        shared = cls(Descriptor(number), places)
        shared.write(weights)
        return shared

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Take over values; raises `EngineError`, with nothing changed, for other names or shapes."""
        check_weights(self.tensors, weights)
        with torch.no_grad():
            for name, target in self.tensors.items():
                target.copy_(full_tensor(weights[name]))

    def close(self) -> None:
        """Let no more processes have the memory; it is freed with the last tensor."""
        os.close(self.descriptor.number)
