"""An index of recorded curves: one memory-mapped Arrow file per run in `runs/.cache/`.

An index file duplicates `metrics.jsonl` and can be deleted at any time. New lines are appended to the index,
and the index is rebuilt if `metrics.jsonl` was truncated or replaced. A resumed run rewrites `metrics.jsonl`,
and the new file may be longer and have the same inode, so a checksum of the last bytes read detects the
change. Index files are replaced atomically, so readers never see a partial file.
"""

from __future__ import annotations

import io
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from atrium.base.atomic import TEMPORARY_PREFIX
from atrium.base.json_lines import decode_line
from atrium.base.plain_files import open_plain
from atrium.base.recorded import as_integer, number_or_nan
from atrium.base.records import Floats
from atrium.runs.run_folder import RunFolder

FORMAT = "2"
_STEP, _TIME = "step", "time"
_FEW_BYTES = 200_000
_MAX_PART_BYTES = 64_000_000
_NUM_CHECKED_BYTES = 4096
"""The number of bytes that a checksum covers. They distinguish files, since each line contains its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTable:
    """Columns [N] by name, including `step` and `time`, with NaN where a step did not record a quantity.

    `offset` is the number of bytes read, `checksum` the checksum of the last bytes before `offset`, and
    `num_unreadable` the number of damaged lines and lines without a step. Steps are in ascending order.
    """

    columns: Mapping[str, Floats] = field(default_factory=dict)
    offset: int = 0
    checksum: int = 0
    num_unreadable: int = 0

    @property
    def steps(self) -> Floats:
        """The recorded steps [N] in ascending order."""
        return self.columns.get(_STEP, np.zeros(0))

    def points(self, metric: str, until: int) -> list[tuple[int, float]]:
        """Return (step, value) of a metric at each step up to `until` with a finite value."""
        values = self.columns.get(metric, np.full(len(self.steps), np.nan))
        return [
            (int(step), float(value))
            for step, value in zip(self.steps, values, strict=True)
            if step <= until and np.isfinite(value)
        ]


class CurveIndex:
    """The curve index files in one folder, one per run; opened files are cached until they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[Path, tuple[tuple[int, int], CurveTable]] = {}

    def path_of(self, run: RunFolder) -> Path:
        """Return the path of the run's index file."""
        return self._folder / f"{run.name}.arrow"

    def read(self, run: RunFolder) -> CurveTable | None:
        """Return the run's indexed curves, or None if there are none or the file is damaged."""
        path = self.path_of(run)
        try:
            stat = path.stat()
            signature = (stat.st_ino, stat.st_mtime_ns)
            known = self._opened.get(path)
            if known is None or known[0] != signature:
                known = self._opened[path] = (signature, _open(path))
            return known[1]
        except (OSError, pa.ArrowException, ValueError, KeyError):
            return None

    def num_bytes_behind(self, run: RunFolder) -> int:
        """Return the number of bytes of `metrics.jsonl` that are not yet indexed (0 if there is no file)."""
        try:
            size = run.metrics_file.stat().st_size
        except OSError:
            return 0
        num_known = 0
        if (table := self.read(run)) is not None:
            with suppress(OSError), open_plain(run.metrics_file) as file:  # `refresh` reports errors
                num_known = table.offset if _goes_on(file, table) else 0
        return size - num_known

    def refresh(self, run: RunFolder) -> bool:
        """Index new lines of the run's metrics; return False if the index was already up to date.

        Raises `OSError` if the metrics cannot be read or the index cannot be written.
        """
        table = self.read(run)
        grown = read_on(run.metrics_file, table or CurveTable())
        if grown is table:
            return False
        _write(self.path_of(run), grown)
        return True


@lru_cache(maxsize=32)
def index_of(cache_dir: Path) -> CurveIndex:
    """Return the curve index of the runs directory whose cache folder is `cache_dir`.

    The index of each directory is cached, because it keeps files open.
    """
    return CurveIndex(cache_dir / "dashboard" / "curves")


def recorded_curves(run: RunFolder) -> CurveTable:
    """Return all curves that the run has recorded so far.

    If the runs directory has a `.cache/`, its index is updated and used. Otherwise the metrics file is read.
    Raises `OSError` if the metrics exist but cannot be read.
    """
    index = index_of(run.cache_dir)
    try:
        if run.cache_dir.is_dir():
            index.refresh(run)
            if (table := index.read(run)) is not None:
                return table
    except OSError:
        pass  # the index is optional: the folder may be read-only, or the disk full
    try:
        return read_on(run.metrics_file, CurveTable())
    except FileNotFoundError:
        return CurveTable()


def read_on(path: Path, table: CurveTable) -> CurveTable:
    """Return the table extended by the file's new complete lines, or a new table if the file was replaced.

    Returns `table` itself if there are no new lines. Raises `OSError` if the file cannot be read.
    """
    with open_plain(path) as file:
        if not _goes_on(file, table):
            table = CurveTable()
        before = table
        file.seek(table.offset)
        while data := file.read(_MAX_PART_BYTES):
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                break
            columns, num_lines = _parse(whole)
            table = _appended(table, columns, num_bytes=len(whole), num_lines=num_lines)
            file.seek(table.offset)
        return table if table is before else replace(table, checksum=_checksum(file, table.offset))


def _parse(whole: bytes) -> tuple[dict[str, Floats], int]:
    """Parse complete lines of `metrics.jsonl`; return the columns, and the number of lines.

    The number includes damaged lines and lines without a step.
    """
    num_lines = whole.count(b"\n")
    if len(whole) > _FEW_BYTES and (columns := _parse_quickly(whole)) is not None:
        return columns, num_lines
    return _parse_patiently(whole), num_lines


def _parse_quickly(whole: bytes) -> dict[str, Floats] | None:
    """Parse lines with Arrow, or return None if they cannot be parsed in this way.

    That is the case if Arrow rejects a line, if a column is not numeric, or if no line has a step.
    """
    try:
        options = pa_json.ReadOptions(use_threads=False, block_size=4_000_000)
        table = pa_json.read_json(io.BytesIO(whole), read_options=options)
    except (pa.ArrowException, OverflowError):
        return None
    columns = {}
    for name in table.column_names:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return None
        columns[name] = table.column(name).cast(pa.float64()).to_numpy().astype(np.float64, copy=False)
    return columns if _STEP in columns else None


def _parse_patiently(whole: bytes) -> dict[str, Floats]:
    records = [decode_line(line) for line in whole.split(b"\n")]
    kept = [record for record in records if record is not None and as_integer(record.get(_STEP)) is not None]
    names = dict.fromkeys(name for record in kept for name in record)
    return {name: np.array([number_or_nan(record.get(name)) for record in kept]) for name in names}


def _appended(
    table: CurveTable, columns: Mapping[str, Floats], *, num_bytes: int, num_lines: int
) -> CurveTable:
    """Return the table with rows appended. If a step was recorded twice, the later record counts.

    `num_bytes` and `num_lines` are the size of the part of `metrics.jsonl` that contains the new rows.
    """
    num_before = len(table.steps)
    num_added = len(columns.get(_STEP, ()))
    joined = {
        name: np.concatenate(
            [
                table.columns.get(name, np.full(num_before, np.nan)),
                columns.get(name, np.full(num_added, np.nan)),
            ]
        )
        for name in dict.fromkeys([*table.columns, *columns])
    }
    steps = joined.get(_STEP, np.zeros(0))
    known = np.isfinite(steps)
    if not (known.all() and (np.diff(steps) > 0).all()):
        _, last_reversed = np.unique(steps[known][::-1], return_index=True)
        order = np.flatnonzero(known)[::-1][last_reversed]
        joined = {name: column[order] for name, column in joined.items()}
    return CurveTable(
        columns=joined,
        offset=table.offset + num_bytes,
        num_unreadable=table.num_unreadable + num_lines - int(num_added),
    )


def _goes_on(file: BinaryIO, table: CurveTable) -> bool:
    """Return whether the last bytes that were read into the table are unchanged in the file."""
    return _checksum(file, table.offset) == table.checksum


def _checksum(file: BinaryIO, end: int) -> int:
    """Return the CRC-32 of the last bytes before `end`: 0 if there are none, -1 if the file is shorter."""
    start = max(end - _NUM_CHECKED_BYTES, 0)
    file.seek(start)
    data = file.read(end - start)
    return zlib.crc32(data) if len(data) == end - start else -1


def _open(path: Path) -> CurveTable:
    with pa.memory_map(str(path)) as source:
        arrow = pa.ipc.open_file(source).read_all()
    about = arrow.schema.metadata or {}
    if about.get(b"format") != FORMAT.encode():
        raise ValueError(f"the curve index {path} has an unknown format; delete it, and it will be rebuilt")
    return CurveTable(
        columns={name: _as_array(arrow.column(name)) for name in arrow.column_names},
        offset=int(about[b"offset"]),
        checksum=int(about[b"checksum"]),
        num_unreadable=int(about[b"num_unreadable"]),
    )


def _as_array(column: pa.ChunkedArray) -> Floats:
    parts = [chunk.to_numpy() for chunk in column.chunks]
    joined: Floats = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0)])
    return joined


def _write(path: Path, table: CurveTable) -> None:
    """Write an index file atomically, but without flushing it to disk, since a damaged index is rebuilt."""
    about = {
        "format": FORMAT,
        "offset": str(table.offset),
        "checksum": str(table.checksum),
        "num_unreadable": str(table.num_unreadable),
    }
    arrow = pa.table({name: pa.array(column) for name, column in table.columns.items()})
    arrow = arrow.replace_schema_metadata(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{path.name}")
    try:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, arrow.schema) as writer:
            writer.write_table(arrow)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
