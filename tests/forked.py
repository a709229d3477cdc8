"""Programs in processes of their own, forked from one that has imported what they import: 6 s less for each.

A process is what `subprocess.Popen` would start, except that `/proc/PID/environ` shows where it was forked
from; what it starts itself has the environment that it was given.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["atrium.cli.train", "atrium.cli.evaluate", "atrium.assemble.training", "atrium.train.ranks.sharding"]
)


class Forked:
    """A program of Python that runs: `-m MODULE ARGUMENTS` or `FILE ARGUMENTS`."""

    def __init__(self, *command, environment, cwd):
        self._said = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it is read at the end
        words = [str(word) for word in command]
        self._process = FORKS.Process(target=_run, args=(words, environment, str(cwd), self._said.name))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        """The exit code, negative for a signal, or None while it runs."""
        return self._process.exitcode

    @property
    def returncode(self):
        """As `poll`."""
        return self._process.exitcode

    def send_signal(self, number):
        """Send a signal to it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout):
        """Nothing, and what it and its children said on standard error, once it has ended."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return b"", Path(self._said.name).read_bytes()


def _run(command, environment, cwd, said):
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for target, path in ((1, os.devnull), (2, said)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, target)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
