"""The requests that `vllm_transfer` sends to engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Join:
    """Asks an engine to come into the group to whose members the trainer sends weights."""

    group: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Receive:
    """Asks an engine of that group for what the trainer sends now, which it takes as `version`."""

    tensors: Mapping[str, Any]
    version: int


AskEach = Callable[[Callable[[int], Join | Receive]], None]
"""Asks each engine what is made of its number, and waits until all have done it."""
