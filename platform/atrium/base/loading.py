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
    """Turn off the garbage collector in the body, which makes imports faster.

    The imported objects exist until the process exits, so they are frozen (`gc.freeze`) and later collections
    skip them.
    """
    num_modules = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules:  # without new modules, only garbage of an earlier run would freeze
            gc.freeze()
        gc.enable()
