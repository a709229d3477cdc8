"""The installed version of a package, and faster imports of large packages."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata


def installed_version(distribution: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def loading() -> Iterator[None]:
    """Turn off the garbage collector for imports in the body, which makes them faster.

    The imported objects live until exit, so later collections skip them (`gc.freeze`).
    """
    num_modules = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules:  # without new modules, only garbage of an earlier run would freeze
            gc.freeze()
        gc.enable()
