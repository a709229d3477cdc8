"""The task of a SLURM job on each of its nodes, which runs `atrium train` and handles preemption.

submitit passes a job's function to the job as a pickle. The function is an instance of `RunJob`, so the
pickle contains the name of the class, a command line and two paths, but no code and no settings objects.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrium.base.processes import is_alive

RUN_FILE_VARIABLE = "ATRIUM_RUN_FILE"
"""Environment variable: the file with the path of the run directory, so that a requeued job finds the run."""

RENDEZVOUS_VARIABLE = "ATRIUM_RENDEZVOUS"
"""Environment variable: the rendezvous of a job's nodes, as host:port."""

_POLL_S = 0.2
_FIRST_PORT, _NUM_PORTS = 20000, 10000


@dataclass
class RunJob:
    """A job that runs `atrium train` with `arguments`, or resumes its run after the job was requeued.

    `flags` are the command-line flags that name plugins. `run_file` is the path of a file to which the
    run writes the path of its run directory. `exit_file` is the path of the file for the exit code.
    """

    arguments: tuple[str, ...]
    flags: tuple[str, ...]
    run_file: str
    exit_file: str

    def __call__(self) -> int:
        """Run the command on this node and return its exit code; the first node writes it to `exit_file`."""
        from submitit import JobEnvironment

        job = JobEnvironment()
        environment = {**os.environ, RUN_FILE_VARIABLE: self.run_file}
        if job.num_nodes > 1:
            port = _FIRST_PORT + int(job.raw_job_id) % _NUM_PORTS
            environment[RENDEZVOUS_VARIABLE] = f"{job.hostnames[0]}:{port}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "atrium", "train", *self._arguments()], env=environment
        )
        # Popen.wait holds a lock, so a signal handler that runs meanwhile would wait for the lock forever.
        while (code := self._process.poll()) is None:
            time.sleep(_POLL_S)
        if job.global_rank == 0:
            Path(self.exit_file).write_text(str(code), encoding="utf-8")
        return code

    def checkpoint(self, *_: Any) -> Any:  # noqa: ANN401 - submitit's protocol
        """Stop the run after it has saved a checkpoint, and return the job to requeue.

        submitit calls this method before a job is preempted or reaches its time limit.
        """
        from submitit.helpers import DelayedSubmission

        self._process.send_signal(signal.SIGTERM)
        while is_alive(self._process.pid):
            time.sleep(_POLL_S)
        return DelayedSubmission(RunJob(self.arguments, self.flags, self.run_file, self.exit_file))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("arguments", "flags", "run_file", "exit_file")}

    def _arguments(self) -> list[str]:
        try:
            return ["--resume", Path(self.run_file).read_text(encoding="utf-8"), *self.flags]
        except FileNotFoundError:
            return [*self.arguments, *self.flags]
