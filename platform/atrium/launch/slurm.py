"""Runs as SLURM jobs: submission with submitit, and reports on the jobs until they end.

Jobs that are submitted together form one job array. Ctrl-C ends the reports, not the jobs.
"""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrium.base import plugins
from atrium.base.errors import (
    AtriumError,
    ConfigError,
    Interrupted,
    MissingDependencyError,
    install_command,
    reason_of,
)
from atrium.launch.rank_logs import last_words
from atrium.launch.settings import SlurmSettings
from atrium.launch.slurm_task import RunJob

_POLL_S = 2.0
_SETTLE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The resources that a SLURM job requests: nodes, GPUs per node, and the settings in `slurm`."""

    slurm: SlurmSettings
    num_nodes: int
    num_gpus_per_node: int

    def sbatch(self) -> dict[str, Any]:
        """Return the job's parameters, keyed by submitit's names for them.

        The job has one task per node, which starts the node's processes.
        """
        slurm = self.slurm
        chosen = {
            "job_name": "atrium",
            "nodes": self.num_nodes,
            "ntasks_per_node": 1,
            "gpus_per_node": self.num_gpus_per_node or None,
            "time": slurm.time_minutes,
            "signal_delay_s": slurm.signal_lead_s,
            "partition": slurm.partition,
            "account": slurm.account,
            "mem": None if slurm.memory_gb is None else f"{slurm.memory_gb}GB",
            "cpus_per_task": slurm.cpus_per_node,
            "array_parallelism": slurm.max_parallel,
            "setup": list(slurm.setup) or None,
            "additional_parameters": {"requeue": True, **slurm.extra},
            "stderr_to_stdout": True,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def job_script(settings: JobSettings, folder: Path) -> str:
    """Return the text of the job's sbatch script, without writing a file.

    `folder` is the folder in which submitit stores the job's files.
    """
    _submitit()
    from submitit.slurm.slurm import _make_sbatch_string

    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    text: str = _make_sbatch_string(command=command, folder=folder, **settings.sbatch())
    return text


class Submission:
    """Jobs submitted together, each of which runs `atrium train` with its own arguments.

    The constructor raises `ConfigError` if SLURM is not installed on this machine or rejects the jobs, and
    `MissingDependencyError` if the package submitit is missing.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        settings: JobSettings,
        cache_dir: Path,
        log: Callable[[str], None],
    ) -> None:
        submitit = _submitit()
        self._settings = settings
        self._log = log
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.folder = (cache_dir / "slurm" / name).absolute()
        self.folder.mkdir(parents=True)
        self._tasks = [
            RunJob(
                tuple(command),
                tuple(plugins.flags()),
                str(self.folder / f"run-{number}"),
                str(self.folder / f"exit-{number}"),
            )
            for number, command in enumerate(commands)
        ]
        self._executor = self._made_executor(submitit)
        self.jobs: list[Any] = []
        try:
            self._submit(None if settings.slurm.executor == "slurm" else settings.slurm.max_parallel)
        except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
            raise ConfigError(f"SLURM rejected the job: {reason_of(error)}; correct compute.slurm") from error

    def follow(self) -> int:
        """Log the states of the jobs until all have ended; return the highest exit code among them.

        A job that ends without an exit code counts as 1, and one whose process was ended by a signal as 128
        plus the signal's number, as in a shell. Raises `Interrupted` on Ctrl-C, after which the jobs
        continue.
        """
        said: dict[int, str] = {}
        codes: dict[int, int] = {}
        try:
            while len(codes) < len(self._tasks):
                for number in range(len(self.jobs)):
                    if number not in codes:
                        self._look(number, said, codes)
                        # Local jobs wait here for a free slot; SLURM jobs wait in SLURM's queue.
                        self._submit(1 if number in codes else 0)
                time.sleep(_POLL_S if self._settings.slurm.executor == "slurm" else _POLL_S / 10)
        except KeyboardInterrupt:
            raise Interrupted(
                "stopped following the jobs, which continue; `atrium runs` shows the state of their "
                f"runs, and `{self._cancel()}` ends the jobs"
            ) from None
        return max(codes.values(), default=0)

    def _submit(self, num_jobs: int | None) -> None:
        waiting = self._tasks[len(self.jobs) :][:num_jobs]
        if not waiting:
            return
        with self._executor.batch():
            begun = [self._executor.submit(task) for task in waiting]
        for job in begun:
            self._log(f"submitted job {job.job_id}, its log is {job.paths.stdout}")
        self.jobs += begun

    def _look(self, number: int, said: dict[int, str], codes: dict[int, int]) -> None:
        job, task = self.jobs[number], self._tasks[number]
        run = _text(Path(task.run_file))
        state = f"{job.state.lower()}{f', its run is {run}' if run else ''}"
        code = _text(Path(task.exit_file))
        if not code and job.done(force_check=False):
            time.sleep(min(_SETTLE_S, _POLL_S))  # a network file system may show new files late
            code = _text(Path(task.exit_file)) or "1"
        if code:
            codes[number] = int(code) if int(code) >= 0 else 128 - int(code)
            cause = last_words(Path(job.paths.stdout)) or f"it printed nothing, and its state is {job.state}"
            words = "" if code == "0" else f" with exit code {code}: {cause}"
            self._log(f"job {job.job_id} ended{words}{f' (run {run})' if run else ''}")
        elif said.get(number) != state:
            said[number] = state
            self._log(f"job {job.job_id} is {state}")

    def _cancel(self) -> str:
        ids = sorted({job.job_id.partition("_")[0] for job in self.jobs})
        return f"{'scancel' if self._settings.slurm.executor == 'slurm' else 'kill'} {' '.join(ids)}"

    def _made_executor(self, submitit: Any) -> Any:  # noqa: ANN401 - submitit has no types
        settings = self._settings
        if settings.slurm.executor == "local":
            executor = submitit.LocalExecutor(self.folder, max_num_timeout=settings.slurm.max_requeues)
            executor.update_parameters(
                timeout_min=settings.slurm.time_minutes,
                signal_delay_s=settings.slurm.signal_lead_s,
                gpus_per_node=settings.num_gpus_per_node,
                stderr_to_stdout=True,
                setup=list(settings.slurm.setup),
            )
            return executor
        try:
            executor = submitit.SlurmExecutor(self.folder, max_num_timeout=settings.slurm.max_requeues)
        except RuntimeError as error:
            raise ConfigError(
                "compute.slurm.executor=slurm requires SLURM, but srun is not installed on this machine; "
                "submit from a machine of the cluster, or test the job here with "
                "compute.slurm.executor=local"
            ) from error
        executor.update_parameters(**settings.sbatch())
        return executor


def check_settings(settings: JobSettings) -> None:
    """Raise `ConfigError` for a local job on several nodes, or if `signal_lead_s` is too large.

    `signal_lead_s` must be less than the time limit of the job.
    """
    if settings.slurm.executor == "local" and settings.num_nodes > 1:
        raise ConfigError(
            "compute.num_nodes must be 1 with compute.slurm.executor=local, which runs on a single "
            f"machine, got {settings.num_nodes}"
        )
    if settings.slurm.signal_lead_s >= 60 * settings.slurm.time_minutes:
        raise ConfigError(
            f"compute.slurm.signal_lead_s must be less than {60 * settings.slurm.time_minutes} seconds "
            f"(compute.slurm.time_minutes={settings.slurm.time_minutes}), got "
            f"{settings.slurm.signal_lead_s}; lower it"
        )


def raise_for(code: int) -> None:
    """Raise an `AtriumError` with the exit code of a failed job; do nothing if `code` is 0.

    The command then exits with the same code.
    """
    if code:
        error = AtriumError("a job failed; its last message is shown above, the rest is in its log")
        error.exit_code = code
        raise error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _submitit() -> Any:  # noqa: ANN401 - submitit has no types
    try:
        import submitit
    except ImportError as error:
        raise MissingDependencyError(
            "SLURM jobs require the package submitit, which is not installed; run "
            f"{install_command('cluster')}"
        ) from error
    return submitit
