"""Giving a hostile command line to the program in this process, with bounded time and memory."""

from __future__ import annotations

import contextlib
import io
import signal
import traceback
from collections.abc import Iterator, Sequence

from benchmarks.attack.outcomes import Outcome, judge

from atrium.base.processes import bounded_memory
from atrium.cli import main

HANG_S = 120
"""No command of the attack takes so long on any machine; the usual one takes a second."""
MOST_BYTES = 8 << 30
"""What no command of the attack takes besides what the libraries have."""


class Hung(BaseException):
    """A command gave no answer within `HANG_S`; no `except Exception` keeps it."""


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raise `Hung` in the block after `HANG_S` seconds."""

    def hang(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def said_by(argv: Sequence[str]) -> tuple[Outcome, str]:
    """How the command ended; notes before an error do not count as lines of it."""
    told = io.StringIO()
    with in_time(), contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        try:
            with bounded_memory(MOST_BYTES):
                code = main(argv)
        except Hung:
            return Outcome.FELL, f"no answer within {HANG_S} s"
        except Exception:  # a defect, whatever it is
            return Outcome.FELL, traceback.format_exc()[-1500:]
    lines = told.getvalue().splitlines(keepends=True)
    return judge(code, "".join(line for line in lines if not line.startswith("note: ")))
