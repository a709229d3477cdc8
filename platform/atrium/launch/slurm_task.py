"""The command that a SLURM job runs on each node, `atrium train`, and its preemption.

submitit stores a job's function as a pickle between the submitting machine and the job. The function is this
class, found by its name, and its content is a command line and two paths, so the pickle contains no code and
no Python settings.
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
"""Variable for the file that holds the path of the run's folder, so that a requeued job finds it."""

RENDEZVOUS_VARIABLE = "ATRIUM_RENDEZVOUS"
"""Variable for the rendezvous of a job's nodes, as host:port."""

_POLL_S = 0.2
_FIRST_PORT, _NUM_PORTS = 20000, 10000


@dataclass
class RunJob:
    """Trains with the arguments of `atrium train`, or resumes the run that the job began before.

    `flags` name plugins, and are passed in both cases.
    """

    arguments: tuple[str, ...]
    flags: tuple[str, ...]
    run_file: str
    exit_file: str

    def __call__(self) -> int:
        """Return the exit code of the command on this node; the first node writes it to `exit_file`."""
        from submitit import JobEnvironment

        job = JobEnvironment()
        environment = {**os.environ, RUN_FILE_VARIABLE: self.run_file}
        if job.num_nodes > 1:
            port = _FIRST_PORT + int(job.raw_job_id) % _NUM_PORTS
            environment[RENDEZVOUS_VARIABLE] = f"{job.hostnames[0]}:{port}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "atrium", "train", *self._arguments()], env=environment
        )
        # Not wait(): it holds a lock that the handler of a concurrent signal would wait for.
        while (code := self._process.poll()) is None:
            time.sleep(_POLL_S)
        if job.global_rank == 0:
            Path(self.exit_file).write_text(str(code), encoding="utf-8")
        return code

    def checkpoint(self, *_: Any) -> Any:  # noqa: ANN401 - submitit's protocol
        """Save and stop, and return the job to queue again; submitit calls it when the job must end."""
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
