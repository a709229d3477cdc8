"""JSON Lines files: a writer that appends whole lines, and readers that tolerate a truncated last line.

If the disk becomes full, the writer removes the line that it could not complete. Readers ignore an incomplete
last line, which is still being written or was left by a killed writer. They count complete lines that contain
no JSON object.
"""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atrium.base.atomic import replacing, standard_json
from atrium.base.plain_files import MAX_LINES_BYTES, read_plain

Record = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """The objects read from a file, the byte offset for the next read, and the number of unreadable lines."""

    records: tuple[Record, ...]
    next_offset: int
    num_unreadable: int


def encode_line(record: Record) -> bytes:
    """Return the record as one line of standard JSON, including the newline."""
    text = json.dumps(standard_json(record), allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def decode_line(line: bytes) -> Record | None:
    """Return the JSON object in a line, or None if the line contains no object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_json_lines(path: Path, offset: int = 0) -> JsonLines:
    """Read the complete lines from byte `offset` on; the result is empty if the file is missing.

    Raises `OSError` if an existing file cannot be read.
    """
    try:
        data = read_plain(path, MAX_LINES_BYTES, offset=offset)
    except FileNotFoundError:
        return JsonLines(records=(), next_offset=offset, num_unreadable=0)
    whole = data[: data.rfind(b"\n") + 1]
    decoded = [decode_line(line) for line in whole.split(b"\n")[:-1]]
    records = tuple(record for record in decoded if record is not None)
    return JsonLines(
        records=records,
        next_offset=offset + len(whole),
        num_unreadable=len(decoded) - len(records),
    )


def split_lines(path: Path, wanted: Callable[[Record], bool]) -> tuple[bytes, bytes]:
    """Split a file into the lines whose JSON object `wanted` accepts, and all other lines.

    Damaged and incomplete lines are among the other lines. Both results are empty if the file is missing.
    """
    try:
        data = read_plain(path, MAX_LINES_BYTES)
    except FileNotFoundError:
        return b"", b""
    kept: list[bytes] = []
    cut: list[bytes] = []
    for line in io.BytesIO(data):
        record = decode_line(line) if line.endswith(b"\n") else None
        (kept if record is not None and wanted(record) else cut).append(line)
    return b"".join(kept), b"".join(cut)


def keep_lines(path: Path, wanted: Callable[[Record], bool]) -> None:
    """Keep only the lines whose JSON object `wanted` accepts; remove all others, including damaged lines.

    The kept lines are unchanged, and the file is replaced atomically.
    """
    kept, cut = split_lines(path, wanted)
    if cut:
        with replacing(path) as temporary:
            temporary.write_bytes(kept)


class JsonLinesWriter:
    """A writer that appends records to one JSON Lines file, which is created if it does not exist.

    The constructor removes an incomplete last line left by an earlier writer. Lines that cannot be written
    stay pending until the next call of `append`, `flush` or `sync`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        data = read_plain(path, MAX_LINES_BYTES)
        self._end = data.rfind(b"\n") + 1
        if self._end != len(data):
            os.ftruncate(self._descriptor, self._end)
        self._pending: list[bytes] = []

    def append(self, record: Record) -> None:
        """Write pending lines, then the record. If `OSError` is raised, unwritten lines stay pending."""
        self._pending.append(encode_line(record))
        self.flush()

    def flush(self) -> None:
        """Write pending lines.

        If a write fails, the incomplete line is removed from the file, and `OSError` is raised.
        """
        while self._pending:
            line = self._pending[0]
            try:
                written = os.write(self._descriptor, line)
                if written < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._descriptor, self._end)
                raise
            self._end += written
            del self._pending[0]

    def sync(self) -> None:
        """Write pending lines, and flush the file to disk."""
        self.flush()
        os.fsync(self._descriptor)

    def is_in_place(self) -> bool:
        """Return whether the path still refers to the open file.

        The result is False if the file was moved, deleted or replaced, and True if this cannot be determined.
        """
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # unknown; the next write reports the problem

    def close(self) -> None:
        """Close the file; pending lines are lost. A second call has no effect."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
