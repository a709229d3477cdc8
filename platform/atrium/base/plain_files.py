"""Functions that open untrusted files; a pipe or a device raises an error instead of blocking."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import TypeVar

_R = TypeVar("_R")

MAX_RECORD_BYTES = 64 << 20
"""Maximum size of a file with one object, such as settings, a status or a summary."""

MAX_LINES_BYTES = 4 << 30
"""Maximum size of a file with one object or text per line."""


def open_plain(path: Path | str) -> BufferedReader:
    """Open the regular file at `path` for reading; raise `OSError` for a pipe, device, folder or socket."""
    return open(path, "rb", opener=_opened)


def read_plain(path: Path | str, max_bytes: int = MAX_RECORD_BYTES, *, offset: int = 0) -> bytes:
    """Return the bytes of a regular file from `offset` on.

    Raises `OSError` if there are more than `max_bytes` of them, or if `path` is not a readable regular file.
    """
    with open_plain(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size - offset
        if num_bytes > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MB", str(path))
        file.seek(offset)
        return file.read(max(0, num_bytes))


def append_plain(path: Path | str) -> BufferedWriter:
    """Open the regular file at `path` for appending, or create it; raise `OSError` for anything else."""
    return open(path, "ab", opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def cached_while_unchanged(maxsize: int) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Return a decorator that caches a function's results until the file that the function reads changes.

    The function's first argument is the path of the file. A file counts as changed if its inode, size or
    modification time changes. At most `maxsize` results are cached, and none for a missing file. The other
    arguments must be hashable.
    """

    def decorate(read: Callable[..., _R]) -> Callable[..., _R]:
        known = lru_cache(maxsize)(lambda _signature, *given: read(*given))

        @wraps(read)
        def cached(path: Path, *given: Hashable) -> _R:
            try:
                found = path.stat()
            except OSError:
                return read(path, *given)
            return known((found.st_ino, found.st_mtime_ns, found.st_size), path, *given)

        return cached

    return decorate
