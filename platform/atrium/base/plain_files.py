"""Files of others, opened without waiting: a pipe, a device or an endless file stops nobody."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, BufferedWriter
from pathlib import Path

MAX_RECORD_BYTES = 64 << 20
"""The most that a file may hold that is read whole into one object: settings, a status, a summary."""

MAX_LINES_BYTES = 4 << 30
"""The most that a file may hold that grows line by line."""


def open_plain(path: Path | str) -> BufferedReader:
    """The regular file at `path`, opened for reading; `OSError` for a pipe, device, folder or socket."""
    return open(path, "rb", opener=_opened)


def read_plain(path: Path | str, max_bytes: int = MAX_RECORD_BYTES, *, offset: int = 0) -> bytes:
    """The bytes of a regular file from `offset` on; `OSError` where they are more than `max_bytes`."""
    with open_plain(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size - offset
        if num_bytes > max_bytes:
            raise OSError(errno.EFBIG, f"it holds more than {max_bytes >> 20} MB", str(path))
        file.seek(offset)
        return file.read(max(0, num_bytes))


def append_plain(path: Path | str) -> BufferedWriter:
    """The regular file at `path`, made if it is missing, opened to write at its end; else `OSError`."""
    return open(path, "ab", opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return descriptor
