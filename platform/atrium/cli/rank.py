"""One rank of a launched run: `python -m atrium.cli.rank RUN [--plugin FILE]`, as torchrun's agent starts it.

It is `atrium train --resume RUN` that prints into its own log, and that ends when its launcher is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from atrium.base.errors import RunFolderError
from atrium.cli.app import main as atrium
from atrium.launch.rank_logs import print_into, rank_log

_LOOK_S = 1.0
_GRACE_S = 60.0


def main(run: str, *flags: str) -> int:
    """Take part in the run in the folder `run`, with the plugins of its launcher; the exit code."""
    rank = int(os.environ["RANK"])
    log = rank_log(Path(run), rank)
    try:
        print_into(log, keep_stdout=rank == 0)
    except OSError as error:
        sys.stderr.write(f"error: {log}: what rank {rank} prints cannot go there ({error.strerror})\n")
        return RunFolderError.exit_code
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        # SLURM sends them to all processes of a job; before training, the launcher's SIGTERM is what counts.
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    return atrium(["train", "--resume", run, *flags])


def _end_with(launcher: int) -> None:
    """Stop after the current step once the launcher is gone, and at once if that takes long."""
    while os.getppid() == launcher:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
