"""Training in a terminal of 80 columns: what a person sees, and what Ctrl-C prints."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time

import pytest

_PATIENCE_S = 200.0
_CTRL_C = b"\x03"


def in_terminal(words, *, cwd, columns=80, interrupt_at=None):
    """Run a command in a pseudo-terminal; its exit code and the lines that the terminal shows over time."""
    process, screen = pty.fork()
    if process == 0:
        os.chdir(cwd)
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("COLUMNS", None)
        os.execv(words[0], words)
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    received, is_interrupted, deadline = b"", False, time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            part = os.read(screen, 65536)
        except OSError:
            break  # the terminal is closed: every process in it has ended
        if not part:
            break
        received += part
        if interrupt_at and not is_interrupted and interrupt_at in received:
            is_interrupted = True
            os.write(screen, _CTRL_C)
    _, status = os.waitpid(process, 0)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received.decode(errors="replace"))
    shown = [line.removesuffix("^C").rstrip() for line in re.split(r"[\r\n]+", text)]
    return os.waitstatus_to_exitcode(status), [line for line in shown if line]


@pytest.mark.full
def test_interrupted_training_fits_80_columns_and_reports_the_stop_once(tmp_path):
    words = [sys.executable, "-m", "atrium", "train", "debug=tiny_steps", "num_steps=1000"]
    code, lines = in_terminal(words, cwd=tmp_path, interrupt_at=b"step 3/1000")
    text = "\n".join(lines)
    assert code == 130, text
    assert text.count("stopped after step") == 1
    assert lines[-1].startswith("stopped after step")
    assert "error:" not in text
    progress = [line for line in lines if re.match(r"step \d+/1000 ", line)]
    assert progress
    assert all("s/step" in line for line in progress if "elapsed" in line and "–" not in line)
    assert not [line for line in lines if len(line) > 80]
    assert "…" not in text
