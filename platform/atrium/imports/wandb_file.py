"""Reader of offline W&B runs (`run-<id>.wandb`), for which W&B publishes no reader.

The file is a LevelDB log with a different header. It consists of blocks of 32 KiB; a record is one or more
chunks of checksum, length, kind and bytes. Records are protobuf messages; only the records on the run, its
configuration and its history are read. Format: wandb 0.31 (`core/pkg/leveldb/record.go`,
`wandb_internal.proto`). Only version 0 of the header is known; other versions raise an error.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from atrium.base.errors import DataError
from atrium.base.nested import flattened
from atrium.base.plain_files import open_plain
from atrium.imports.answers import Source, Stated
from atrium.imports.files import read_errors
from atrium.imports.trackers import TrackedRun, add_history, tracked_source

_MAGIC = b":W&B\xe1\xbe"
_VERSION = 0
_BLOCK_BYTES = 32 << 10
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _LAST, _CUT = 1, 2, 4, -1
_MAX_RECORD_BYTES = 64 << 20
_HISTORY, _CONFIG, _RUN, _EXIT = 2, 5, 17, 18
"""Fields of `Record`."""
_RUN_CONFIG, _RUN_NAME = 4, 8
"""Fields of `RunRecord`."""
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16
"""Fields of `HistoryItem` and `ConfigItem`."""


def is_wandb_file(path: Path) -> bool:
    """Return whether a file has the suffix of an offline W&B run."""
    return path.suffix == ".wandb"


def read_wandb_file(path: Path, stated: Stated) -> Source:
    """Read the curves and the configuration of an offline run.

    Raises `DataError` for an unknown version and a damaged file, and for a truncated file unless
    `stated.incomplete` is set.
    """
    run = _Run()
    with read_errors(path):
        for record in _records(path, stated):
            run.add(record)
    ended = () if run.has_ended else (f"{path}: the run was still running when the file was written",)
    found = TrackedRun(method=run.name or path.stem, config=run.config, steps=run.steps)
    return tracked_source(path, "W&B offline run", [found], stated, ended)


@dataclass(kw_only=True)
class _Run:
    """A run as read so far. Later values of a metric or setting replace earlier ones."""

    name: str = ""
    config: dict[str, object] = field(default_factory=dict)
    steps: dict[int, dict[str, object]] = field(default_factory=dict)
    has_ended: bool = False

    def add(self, record: bytes) -> None:
        """Add the content of a record; records of unknown kinds are ignored."""
        for kind, content in _fields(record):
            self.has_ended = self.has_ended or kind == _EXIT
            if not isinstance(content, bytes):
                continue
            if kind == _HISTORY:
                add_history(self.steps, _items(content, 1))
            elif kind == _CONFIG:
                self.config |= flattened(_items(content, 1))
            elif kind == _RUN:
                parts = [(number, part) for number, part in _fields(content) if isinstance(part, bytes)]
                self.name = next((part.decode() for number, part in parts if number == _RUN_NAME), self.name)
                for number, part in parts:
                    if number == _RUN_CONFIG:
                        self.config |= flattened(_items(part, 1))


def _items(message: bytes, number: int) -> dict[str, object]:
    """Return the JSON values in a repeated field of a protobuf message, keyed by name.

    `number` is the number of the field. The parts of a nested name are joined by dots.
    """
    found: dict[str, object] = {}
    for own, item in _fields(message):
        if own == number and isinstance(item, bytes):
            parts = [(kind, part.decode()) for kind, part in _fields(item) if isinstance(part, bytes)]
            name = ".".join(part for kind, part in parts if kind in (_KEY, _NESTED_KEY) and part)
            found[name] = next((json.loads(part) for kind, part in parts if kind == _VALUE_JSON), None)
    return found


def _records(path: Path, stated: Stated) -> Iterator[bytes]:
    """Yield the records of the file.

    Raises `ValueError` if a record is damaged, and `DataError` for another kind of file or an unknown
    version. A truncated last record raises `DataError` too, unless `stated.incomplete` is set.
    """
    with open_plain(path) as file:
        header = file.read(len(_MAGIC) + 1)
        if header[:-1] != _MAGIC:
            raise DataError(
                f"{path} is not a W&B run file, since it starts with the bytes {header[:4]!r}; choose "
                "another file"
            )
        if header[-1] != _VERSION:
            raise DataError(
                f"{path} is a W&B run file of version {header[-1]}, expected {_VERSION}; export the "
                "charts as CSV instead"
            )
        parts: list[bytes] = []
        for kind, content in _chunks(file, len(header)):
            parts.append(content)
            if kind == _CUT:
                break
            if (kind in (_FULL, _FIRST)) is (len(parts) > 1) or sum(map(len, parts)) > _MAX_RECORD_BYTES:
                raise ValueError("a record is out of order or too long")
            if kind in (_FULL, _LAST):
                yield b"".join(parts)
                parts = []
        if parts and not stated.incomplete:
            raise DataError(
                f"{path} ends within a record, as after a killed run; use --incomplete to read the "
                "complete records"
            )


def _chunks(file: BufferedReader, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, content) of each chunk; a truncated chunk at the end yields (`_CUT`, b"").

    `offset` is the size of the header, which belongs to the first block. Raises `ValueError` for a wrong
    checksum.
    """
    while block := bytes(offset) + file.read(_BLOCK_BYTES - offset):
        place, offset = offset, 0
        while place + _CHUNK.size <= len(block):
            checksum, num_bytes, kind = _CHUNK.unpack_from(block, place)
            start, place = place + _CHUNK.size, place + _CHUNK.size + num_bytes
            if checksum == num_bytes == kind == 0:  # the writer pads the rest of the block with zeros
                break
            if place > len(block):
                break
            if zlib.crc32(block[start - 1 : place]) != checksum:
                raise ValueError("a checksum does not match")
            yield kind, block[start:place]
        if place != len(block) < _BLOCK_BYTES and any(block[min(place, len(block)) - 1 :]):
            yield _CUT, b""


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, content) of each field of a protobuf message; raise `ValueError` if it is damaged."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        content: int | bytes
        if tag & 7 == 0:
            content, place = _varint(message, place)
        else:
            num_bytes = {1: 8, 5: 4}.get(tag & 7)
            if num_bytes is None:
                if tag & 7 != 2:
                    raise ValueError("a record is not a valid protobuf message")
                num_bytes, place = _varint(message, place)
            content, place = message[place : place + num_bytes], place + num_bytes
        if place > len(message):
            raise ValueError("a record is not a valid protobuf message")
        yield tag >> 3, content


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Decode the varint at `place` (7 bits per byte); return its value and the position after it.

    Raises `ValueError` if the varint is truncated.
    """
    value = shift = 0
    while place < len(message) and shift < 70:
        value |= (message[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if message[place - 1] < 128:
            return value, place
    raise ValueError("a record is not a valid protobuf message")
