"""One rank of a launched run; torchrun's agent starts `python -m atrium.cli.rank RUN [--plugin FILE]`.

It works like `atrium train --resume RUN`, but prints to its own log and exits after its launcher has exited.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from atrium.base.errors import RunFolderError, reason_of
from atrium.cli.app import main as atrium
from atrium.launch.rank_logs import print_into, rank_log

_LOOK_S = 1.0
_GRACE_S = 60.0


def main(run: str, *flags: str) -> int:
    """Run one rank of the run in the run directory `run`, in this process; return the exit code.

    `flags` are the `--plugin` options of the launcher.
    """
    rank = int(os.environ["RANK"])
    log = rank_log(Path(run), rank)
    try:
        print_into(log, keep_stdout=rank == 0)
    except OSError as error:
        sys.stderr.write(f"error: {log}: cannot write the output of rank {rank} ({reason_of(error)})\n")
        return RunFolderError.exit_code
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        # SLURM sends these signals to all processes of a job; before training, only SIGTERM may end a rank.
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    return atrium(["train", "--resume", run, *flags])


def _end_with(launcher: int) -> None:
    """Wait until the process `launcher` exits, and then end this rank.

    SIGTERM ends the rank after its current step. If it still runs after 60 s, its process group is killed.
    """
    while os.getppid() == launcher:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
