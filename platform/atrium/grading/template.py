"""The caller's end of the template process that grading workers are forked from.

It starts and ends the process and sends it requests; the code of the process is in `worker`. Nothing here
blocks, except for waiting for the process to end.
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
    """The process that workers are forked from, and the socket that it listens to."""

    def __init__(self, *, memory_limit_mb: int, timeout_s: float, modules: Sequence[str] = ()) -> None:
        self.control, theirs = socket.socketpair()
        arguments = [os.pathsep, os.pathsep.join(sys.path), str(memory_limit_mb), str(timeout_s), *modules]
        # One hash seed for all workers: the order of SymPy's terms, and so its results, depend on it.
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
        """Request a worker and return the connection to it; this blocks until the template is ready.

        Raises OSError if the template has exited.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unsent:
            unsent.callback(ours.close)
            socket.send_fds(self.control, [REQUEST.pack(FORK, 0)], [theirs.fileno()])
            unsent.pop_all()
        return ours

    def kill(self, pid: int) -> None:
        """Kill a worker, whether it is still running or not."""
        try:
            self.control.sendall(REQUEST.pack(KILL, pid))
        except OSError:
            if self.process.poll() != 0:  # the template exited without ending its workers
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self, *, at_once: bool) -> None:
        """End the process; unless `at_once`, it ends its workers first."""
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
