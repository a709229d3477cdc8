"""Libraries: which version is installed, and importing large ones without the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def loading() -> Iterator[None]:
    """Import with the garbage collector off, then freeze the created objects, which live until exit."""
    num_modules = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules:  # otherwise garbage of an earlier run would be frozen too
            gc.freeze()
        gc.enable()
