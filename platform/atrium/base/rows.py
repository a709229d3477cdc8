"""A reader of data files (JSON Lines, JSON, Parquet, CSV) that yields rows as plain dictionaries.

Rows are not interpreted, and nothing is unpickled or executed. Parquet files are read in batches, and only
the requested columns are read, so a file with millions of rows needs little memory.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atrium.base.errors import DataError, reason_of
from atrium.base.plain_files import MAX_LINES_BYTES, open_plain, read_plain

Row = Mapping[str, Any]
Parse = Callable[[str], Any]
"""A function that parses JSON text; raises `ValueError` for invalid text."""

_BATCH_ROWS = 2048
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # most appear in pairs
_SEPARATOR = re.compile(r"sep=(.)\s*", re.IGNORECASE)
_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_LINES = 100
_POINTER = "version https://git-lfs.github.com"
_MAX_CHARS = 1 << 26  # limit per line and per cell; no model could read a larger row


def parse_json(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON text; raise `ValueError` for invalid text and for unpaired surrogates in strings."""
    value = json.loads(text)
    if _ESCAPED_HALF.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_rows(path: Path, columns: Collection[str] = (), *, parse: Parse = parse_json) -> Iterator[Row]:
    """Yield the rows of a file. The file's suffix determines its format; `parse` parses JSON text.

    Of a Parquet file, only `columns` are read, and the values of all other columns are None. If the Parquet
    file has none of `columns`, all its columns are read.

    A JSON file contains a list of rows or a single object. The object is one row, unless exactly one of its
    values is a list and all elements of this list are objects other than chat messages (with `role` and
    `content`). In that case, these elements are the rows. An empty list counts as the list of rows only if it
    is the object's only value.

    Raises `DataError` for an unreadable or damaged file, and for an unknown suffix.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown kind of file; the name must end in one of {', '.join(READERS)}")
    try:
        yield from reader(path, columns, parse)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {error.start}); convert the file to UTF-8"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({reason_of(error)}); check the file and its permissions"
        ) from error


def _json_lines(path: Path, columns: Collection[str], parse: Parse) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield _object(path, f"line {number}", line, parse)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with their line breaks; raise `DataError` if a line is too long."""
    with open_plain(path) as plain, io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as file:
        for number in itertools.count(1):
            line = file.readline(_MAX_CHARS)
            if len(line) == _MAX_CHARS:
                raise DataError(f"{path}: line {number} has more than {_MAX_CHARS:,} characters; shorten it")
            if not line:
                return
            yield line


def _json(path: Path, columns: Collection[str], parse: Parse) -> Iterator[Row]:
    text = read_plain(path, MAX_LINES_BYTES).decode("utf-8-sig")
    try:
        rows = parse(text)
    except (ValueError, RecursionError):
        yield from _json_lines(path, columns, parse)
        return
    if isinstance(rows, dict):
        lists = [value for value in rows.values() if isinstance(value, list)]
        # A list of objects contains the rows, unless these are messages: then it is a prompt of one row.
        # An empty list beside other values is one of the row's values.
        may_be_rows = len(lists) == 1 and (lists[0] or len(rows) == 1)
        has_rows = may_be_rows and all(
            isinstance(one, dict) and not {"role", "content"} <= one.keys() for one in lists[0]
        )
        rows = lists[0] if has_rows else [rows]
    if not isinstance(rows, list):
        raise DataError(f"{path} must contain a list of rows; write a JSON list of objects")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path}: entry {number} is not an object with fields; correct the entry")
        yield row


def _object(path: Path, place: str, text: str, parse: Parse) -> Row:
    if text.startswith(_POINTER):
        raise DataError(
            f"{path} is a Git LFS pointer instead of the data; fetch the data with `git lfs pull`"
        )
    try:
        row = parse(text.rstrip())
    except (ValueError, RecursionError) as error:
        said = (
            f"{error.msg.removesuffix(' starting at')} at column {error.colno}"
            if isinstance(error, json.JSONDecodeError)
            else error
        )
        raise DataError(
            f"{path}: {place} is not valid JSON ({said}); correct it, or restore the file if it is incomplete"
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{path}: {place} is not an object with fields; correct the file")
    return row


def _csv(path: Path, columns: Collection[str], parse: Parse) -> Iterator[Row]:
    before = csv.field_size_limit(_MAX_CHARS)
    try:
        lines = _lines(path)
        first = next(lines, "")
        said = _SEPARATOR.fullmatch(first)  # Excel's separator line
        # A quoted cell may contain line breaks, so the sample consists of lines, not records.
        sample = ([] if said else [first]) + list(itertools.islice(lines, _SAMPLE_LINES))
        delimiter = said[1] if said else _delimiter(path, sample)
        reader = csv.DictReader(itertools.chain(sample, lines), delimiter=delimiter, strict=True)
        names = reader.fieldnames or ()
        if len(set(names)) < len(names):
            raise DataError(f"{path}: the header contains a column name twice; rename one of the columns")
        for row in reader:
            if None in row or None in row.values():
                num_missing = sum(value is None for value in row.values())
                num_cells = len(names) - num_missing + len(row.get(None) or ())
                # The reader does not see the separator line.
                raise DataError(
                    f"{path}, line {reader.line_num + bool(said)}: expected {len(names)} cells separated by "
                    f"{delimiter!r}, as in the header, got {num_cells}; put cells that contain "
                    f"{delimiter!r} in double quotes, or declare another separator in the first line, "
                    "such as sep=;"
                )
            yield row
    except csv.Error as error:
        raise DataError(f"{path} is not a valid CSV file: {error}; correct the file") from error
    finally:
        csv.field_size_limit(before)


def _delimiter(path: Path, sample: Sequence[str]) -> str:
    """Return the separator of a CSV file's cells, detected from the first lines (`sample`).

    The separator is the one for which the largest share of records have as many cells as the header. In a
    tie, the separator that yields more cells is chosen. Files with the suffix `.tsv` are separated by tabs.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max(_DELIMITERS, key=lambda mark: _fit(sample, mark))


def _fit(sample: Sequence[str], mark: str) -> tuple[float, int]:
    """Measure how well the separator `mark` fits the first lines of a CSV file (`sample`).

    Returns the share of records with as many cells as the header, and the header's number of cells. Both are
    0 if the header has fewer than two cells.
    """
    widths: list[int] = []
    with contextlib.suppress(csv.Error):  # unclosed quotes, in the last record or due to a wrong separator
        widths.extend(len(cells) for cells in csv.reader(sample, delimiter=mark, strict=True) if cells)
    if not widths or widths[0] < 2:
        return 0.0, 0
    return sum(width == widths[0] for width in widths) / len(widths), widths[0]


def _parquet(path: Path, columns: Collection[str], parse: Parse) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_plain(path) as plain, pq.ParquetFile(plain) as file:
            names = file.schema_arrow.names
            # If the file has none of the columns, all are read, so that an error can list them.
            wanted = [name for name in names if name in columns] or names
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    yield row if wanted == names else {**dict.fromkeys(names), **row}
    except pa.ArrowException as error:
        raise DataError(
            f"{path} is not a complete Parquet file ({reason_of(error)}); copy or download the file again"
        ) from error


READERS: dict[str, Callable[[Path, Collection[str], Parse], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
    ".tsv": _csv,
}
