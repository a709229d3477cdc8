"""Rows of CSV, JSON Lines and Parquet files, one at a time, and JSON files as a whole.

Every error is a `DataError` of one line that names the file. Nothing is unpickled or executed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from atrium.base.errors import DataError
from atrium.base.plain_files import open_plain, read_plain

Row = Mapping[str, object]
"""A row by column; columns of JSON may hold objects and lists."""

_MAX_LINE_BYTES = 64 << 20
_MAX_JSON_BYTES = 512 << 20
_BATCH_ROWS = 256
_BLOCK_BYTES = 1 << 20


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn errors of a damaged, missing or unreadable file into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        if error.strerror is None:  # pyarrow's, over several lines
            raise DataError(f"{path}: is damaged: {str(error).splitlines()[0][:120]}") from error
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not text in UTF-8; save it in this encoding") from error
    except (ValueError, RecursionError, csv.Error) as error:  # pyarrow's errors are ValueErrors
        raise DataError(f"{path}: is damaged: {str(error).splitlines()[0][:120]}") from error


def digest(path: Path) -> str:
    """The SHA-256 of a file's content."""
    found = hashlib.sha256()
    with read_errors(path), open_plain(path) as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def rows(path: Path) -> Iterator[tuple[str, Row]]:
    """The rows of a `.csv`, `.tsv`, `.jsonl` or `.parquet` file, each with its place for messages."""
    readers = {".csv": _csv_rows, ".tsv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    with read_errors(path):
        for number, row in readers[path.suffix.lower()](path):
            yield f"{path}, row {number}", row


def json_object(path: Path) -> Mapping[str, object]:
    """The object in a JSON file."""
    with read_errors(path):
        found = json.loads(read_plain(path, _MAX_JSON_BYTES))
    if not isinstance(found, dict):
        raise DataError(f"{path}: must hold a JSON object")
    return found


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(_MAX_LINE_BYTES)
    with open_plain(path) as plain, io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as file:
        line = file.readline(_MAX_LINE_BYTES)
        file.seek(0)
        reader = csv.reader(file, strict=True, delimiter=max(",;\t", key=line.count))
        names = next(reader, [])
        if len(set(names)) != len(names):
            raise DataError(f"{path}: a column name appears twice in the first line")
        for number, values in enumerate((values for values in reader if values), start=1):
            if len(values) != len(names):
                raise DataError(
                    f"{path}, row {number}: {len(values)} values, expected {len(names)}; the file may "
                    "be cut off"
                )
            yield number, dict(zip(names, values, strict=True))


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Row]]:
    with open_plain(path) as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES):
            number += 1
            if not line.strip():
                continue
            if len(line) == _MAX_LINE_BYTES:
                raise DataError(f"{path}, row {number}: the line is longer than {_MAX_LINE_BYTES >> 20} MB")
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError):
                cut = "" if line.endswith(b"\n") else "; the file may be cut off"
                raise DataError(f"{path}, row {number}: is not valid JSON{cut}") from None
            if not isinstance(row, dict):
                raise DataError(f"{path}, row {number}: must be a JSON object")
            yield number, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow.parquet as pq  # 0.3 s

    with open_plain(path) as plain, pq.ParquetFile(plain) as file:
        number = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def files_of(source: Path) -> list[Path]:
    """The file, or the files below a directory that may hold results, links to directories not followed."""
    if not source.is_dir():
        return [source]
    found = [
        Path(folder) / name
        for folder, _, names in os.walk(source)
        for name in names
        if not name.startswith(".")
    ]
    return sorted(found, key=lambda path: (str(path.parent), path.stem.rjust(20, "0"), path.name))
