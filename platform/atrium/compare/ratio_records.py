"""Token counts from `ratios.jsonl`, which contains a distribution of importance ratios per training step."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from atrium.base.json_lines import decode_line
from atrium.base.plain_files import MAX_LINES_BYTES, cached_while_unchanged, read_plain
from atrium.base.records import Floats
from atrium.compare.trust_region import counts_of_record, evenly_chosen, no_counts

_MAX_LINES = 300
_STEP = re.compile(rb'\{"step":(\d{1,15})[,}]')


def ratios_of(path: Path, step: int | None = None, *, until: int | None = None) -> Floats | None:
    """Return a run's token counts [signs, fine bins] at `step`, by default summed over steps.

    At most 300 evenly spaced steps are summed. Steps after `until` are excluded. Returns None if no counts
    can be read.
    """
    try:
        return _read_counts(path, step, until)
    except OSError:
        return None


@cached_while_unchanged(256)
def _read_counts(path: Path, step: int | None, until: int | None) -> Floats | None:
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
