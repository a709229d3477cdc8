"""The caller's side of the template process, from which grading workers are forked.

This module starts and stops the template process and sends requests to it; `worker` contains the code of the
process. Only `Template.end` blocks, since it waits until the process has exited.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from atrium.grading.worker import FORK, KILL, REQUEST

_END_TIMEOUT_S = 5.0
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2].split(sys.argv[1]); "
    "from atrium.grading.worker import run_template; "
    "run_template(memory_limit_mb=int(sys.argv[3]), timeout_s=float(sys.argv[4]), modules=sys.argv[5:])"
)


class Template:
    """The template process, from which workers are forked, and the socket for requests to it."""

    def __init__(self, *, memory_limit_mb: int, timeout_s: float, modules: Sequence[str] = ()) -> None:
        self.control, theirs = socket.socketpair()
        arguments = [os.pathsep, os.pathsep.join(sys.path), str(memory_limit_mb), str(timeout_s), *modules]
        # All workers have the same hash seed: it determines the order of SymPy's terms, and so the results.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # outside the terminal's process group: Ctrl-C is for the caller
            )

    def fork(self) -> socket.socket:
        """Request a worker and return the connection to it, without waiting until the worker is ready.

        Raises `OSError` if the template has exited.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unsent:
            unsent.callback(ours.close)
            socket.send_fds(self.control, [REQUEST.pack(FORK, 0)], [theirs.fileno()])
            unsent.pop_all()
        return ours

    def kill(self, pid: int) -> None:
        """Kill a worker; no effect if it has already exited."""
        try:
            self.control.sendall(REQUEST.pack(KILL, pid))
        except OSError:
            if self.process.poll() != 0:  # the template exited without killing its workers
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self, *, at_once: bool) -> None:
        """Stop the template process and wait until it has exited.

        With `at_once`, the process is killed immediately. Otherwise, it is asked to kill its workers and
        exit, and is killed if it still runs after 5 seconds.
        """
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        if at_once:
            self.process.kill()
        try:
            self.process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
