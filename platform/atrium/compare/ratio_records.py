"""The distributions of ratios that a run recorded, a line of `ratios.jsonl` per step; long files in part."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import numpy as np

from atrium.base.json_lines import decode_line
from atrium.base.plain_files import MAX_LINES_BYTES, read_plain
from atrium.compare.trust_region import RatioCounts, counts_of_record, evenly_chosen, no_counts

_MAX_LINES = 300
_STEP = re.compile(rb'\{"step":(\d{1,15})[,}]')


def ratios_of(path: Path, step: int | None = None, *, until: int | None = None) -> RatioCounts | None:
    """The counts of a step, or of at most 300 evenly spread steps (`until` one) together; None if none."""
    try:
        stat = path.stat()
        return _read_counts(str(path), step, until, stat.st_mtime_ns, stat.st_size)
    except OSError:
        return None


@lru_cache(maxsize=256)
def _read_counts(
    path: str, step: int | None, until: int | None, _modified: int, _size: int
) -> RatioCounts | None:
    data = read_plain(path, MAX_LINES_BYTES)
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")).tolist()
    starts = [0, *(end + 1 for end in ends[:-1])]
    lines = list(zip(starts, ends, strict=False))
    if step is not None:
        lines = [(start, end) for start, end in lines if _step_at(data, start) == step]
    if until is not None:
        lines = [(start, end) for start, end in lines if (_step_at(data, start) or 0) <= until]
    total, num = no_counts(), 0
    for place in evenly_chosen(range(len(lines)), _MAX_LINES):
        record = decode_line(data[slice(*lines[place])])
        counts = None if record is None else counts_of_record(record)
        if counts is not None:
            total, num = total + counts, num + 1
    return total if num else None


def _step_at(data: bytes, start: int) -> int | None:
    match = _STEP.match(data, start)
    return int(match[1]) if match else None
