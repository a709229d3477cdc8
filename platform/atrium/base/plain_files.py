"""Opening untrusted files without blocking on a pipe, a device or an endless file."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, BufferedWriter
from pathlib import Path

MAX_RECORD_BYTES = 64 << 20
"""Maximum size of a file that is read into one object: settings, a status, a summary."""

MAX_LINES_BYTES = 4 << 30
"""Maximum size of a file that grows line by line."""


def open_plain(path: Path | str) -> BufferedReader:
    """Open the regular file at `path` for reading; `OSError` for a pipe, device, folder or socket."""
    return open(path, "rb", opener=_opened)


def read_plain(path: Path | str, max_bytes: int = MAX_RECORD_BYTES, *, offset: int = 0) -> bytes:
    """Return the bytes of a regular file from `offset` on; `OSError` if there are more than `max_bytes`."""
    with open_plain(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size - offset
        if num_bytes > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MB", str(path))
        file.seek(offset)
        return file.read(max(0, num_bytes))


def append_plain(path: Path | str) -> BufferedWriter:
    """Open the regular file at `path` for appending, created if missing; `OSError` for anything else."""
    return open(path, "ab", opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor
