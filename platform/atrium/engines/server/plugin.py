"""A vLLM plugin that ends a server's processes when the trainer that started them ends.

vLLM loads the plugin in each of its processes. Without the plugin, vLLM's engine and worker processes would
outlive a killed trainer. The plugin has no effect in processes that Atrium did not start.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path

TRAINER, FOLDERS = "ATRIUM_TRAINER", "ATRIUM_SERVER_FOLDERS"
"""Environment variables: the trainer's `identity`, and the folders to delete after the trainer has exited."""

_THREAD = "end-with-trainer"
_START_TIME_FIELD = 19  # of /proc/PID/stat, counted after the name of the program


def identity(pid: int) -> str:
    """Return the process id and start time as `PID:START`, to distinguish processes that reuse an id.

    START is in clock ticks since the machine's boot.
    """
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return f"{pid}:{stat.rpartition(')')[2].split()[_START_TIME_FIELD]}"


def is_alive(process: str) -> bool:
    """Return whether the process with the identity `process` is still running."""
    try:
        return identity(int(process.partition(":")[0])) == process
    except (OSError, ValueError):
        return False


def shared_memory_of(pid: int | str) -> set[Path]:
    """Return the shared-memory files of vLLM's queues that a process has mapped into its memory."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        return {Path(path) for line in lines if (path := line.split()[-1]).startswith("/dev/shm/psm_")}
    return set()


def end_with_trainer() -> None:
    """Start a thread that kills this process once the trainer that started it has exited.

    Before the process is killed, the folders listed in the environment variable `ATRIUM_SERVER_FOLDERS` and
    the shared memory of vLLM's queues are deleted. If the trainer has already exited, this happens at once.
    The function does nothing in a process that no trainer started.
    """
    trainer = os.environ.get(TRAINER)
    if trainer is None or any(thread.name == _THREAD for thread in threading.enumerate()):
        return
    try:
        handle = os.pidfd_open(int(trainer.partition(":")[0]))
        if not is_alive(trainer):
            _end()
    except OSError:
        _end()
    threading.Thread(target=_wait, args=(handle,), name=_THREAD, daemon=True).start()


def _wait(handle: int) -> None:
    select.select([handle], [], [])
    _end()


def _end() -> None:
    for path in shared_memory_of("self"):
        path.unlink(missing_ok=True)
    for folder in os.environ.get(FOLDERS, "").split(os.pathsep):
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)
