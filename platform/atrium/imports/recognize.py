"""Which program wrote a file, read off its name, columns and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atrium.base.errors import DataError
from atrium.imports.answers import Source, Stated
from atrium.imports.files import Row, rows
from atrium.imports.tables import read_table

TABLES = (".csv", ".jsonl", ".parquet")

Reader = Callable[[Path, Stated], Source]
_READERS: tuple[tuple[Callable[[Path, Row], bool], Reader], ...] = ()
"""Formats of programs, told apart by a file's name and first row; any other file of rows is a table."""


def read_source(path: Path, stated: Stated) -> Source:
    """The content of a file. Raises `DataError` for a file that is none of the known formats."""
    if path.suffix.lower() not in TABLES:
        raise DataError(
            f"{path}: expected a file that ends in {', '.join(TABLES)}, or a directory of such files"
        )
    first = next(rows(path), None)
    if first is None:
        raise DataError(f"{path}: holds no rows")
    for fits, read in _READERS:
        if fits(path, first[1]):
            return read(path, stated)
    return read_table(path, stated)
