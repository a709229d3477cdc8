"""The logs of a run's processes: `ranks/rank-N.log` in the run directory, one for each rank.

Rank 0 keeps its standard output, which shows progress. All other output of the ranks goes to their logs.
"""

from __future__ import annotations

import os
import re
import sys
from itertools import chain
from pathlib import Path

from atrium.base.plain_files import append_plain, open_plain

_ERROR = "error: "
_OF_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*")
_MAX_READ_BYTES = 65536


def ranks_dir(run: Path) -> Path:
    """Return the directory of a run's rank logs, `ranks` in the run directory."""
    return run / "ranks"


def rank_log(run: Path, rank: int) -> Path:
    """Return the path of one rank's log, `ranks/rank-N.log` in the run directory."""
    return ranks_dir(run) / f"rank-{rank}.log"


def print_into(log: Path, *, keep_stdout: bool) -> None:
    """Redirect the output of this process and of its children to a log.

    With `keep_stdout`, only standard error is redirected. Raises `OSError` if the log cannot be opened.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with append_plain(log) as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
        if not keep_stdout:
            os.dup2(file.fileno(), sys.stdout.fileno())


def size_of(log: Path) -> int:
    """Return the size of a log in bytes, or 0 if the log does not exist yet."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_words(log: Path, since: int = 0) -> str:
    """Return the last message in a log after the first `since` bytes.

    The message is the text after `error:` in the last line that begins with `error:`. Without such a line,
    the message is the last line of a traceback, or the last line of the log if it has no traceback. Only the
    last 64 KiB of the log are searched. The message is empty if there is none, or if the log cannot be read.
    """
    try:
        with open_plain(log) as file:
            file.seek(max(since, size_of(log) - _MAX_READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = (line.removeprefix(_ERROR) for line in reversed(lines) if line.startswith(_ERROR))
    raised = (line for line in reversed(lines) if _OF_ERROR.fullmatch(line))
    return next(chain(errors, raised, reversed(lines)), "")
