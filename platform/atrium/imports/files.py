"""Rows of files one at a time, JSON files as a whole, and the files of a directory.

Every error is a `DataError` of one line that names the file. Nothing is unpickled or executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from atrium.base.errors import DataError
from atrium.base.plain_files import open_plain, read_plain
from atrium.base.rows import Row, read_rows

_MAX_JSON_BYTES = 512 << 20
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
    except (ValueError, RecursionError) as error:  # pyarrow's errors are ValueErrors
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
    with read_errors(path):
        for number, row in enumerate(read_rows(path, parse=json.loads), start=1):
            yield f"{path}, row {number}", row


def json_object(path: Path) -> Mapping[str, object]:
    """The object in a JSON file."""
    with read_errors(path):
        found = json.loads(read_plain(path, _MAX_JSON_BYTES))
    if not isinstance(found, dict):
        raise DataError(f"{path}: must hold a JSON object")
    return found


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
