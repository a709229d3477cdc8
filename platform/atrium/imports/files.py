"""Functions that read the rows of a file, a JSON object, or the list of files in a directory.

A damaged or unreadable file raises a one-line `DataError` that names the file. Rows are streamed. Nothing is
unpickled or executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from atrium.base.errors import DataError, reason_of
from atrium.base.plain_files import open_plain, read_plain
from atrium.base.rows import Row, read_rows

_MAX_JSON_BYTES = 512 << 20
_BLOCK_BYTES = 1 << 20


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn errors of a damaged, missing or unreadable file into a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({reason_of(error)}); check the file and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; convert the file to UTF-8") from error
    except (ValueError, RecursionError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0][:120]
        raise DataError(f"{path} is damaged ({said}); copy the file again, or export it again") from error


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    found = hashlib.sha256()
    with read_errors(path), open_plain(path) as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield (place, row) for each row of a CSV, TSV, JSON Lines or Parquet file; `place` is for messages."""
    for number, row in enumerate(read_rows(path, parse=json.loads), start=1):
        yield f"{path}, row {number}", row


def json_object(path: Path) -> Mapping[str, object]:
    """Return the object in a JSON file of at most 512 MiB; raise `DataError` for any other file."""
    with read_errors(path):
        found = json.loads(read_plain(path, _MAX_JSON_BYTES))
    if not isinstance(found, dict):
        raise DataError(f"{path} must contain a JSON object; choose another file")
    return found


def files_of(source: Path) -> list[Path]:
    """Return the sorted files below a directory, or `[source]` if `source` is not a directory.

    Files and directories below it whose names begin with a dot, and linked directories, are left out.
    """
    if not source.is_dir():
        return [source]
    found: list[Path] = []
    for folder, folders, names in os.walk(source):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(folder) / name for name in names if not name.startswith(".")]
    return sorted(found, key=lambda path: (str(path.parent), path.stem.rjust(20, "0"), path.name))
