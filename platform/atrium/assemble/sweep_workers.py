"""Functions that run a sweep in worker processes on this machine, and show its progress.

A worker imports torch once and trains one run after another. A killed worker is replaced, and its trial is
resumed. The first Ctrl-C stops all workers after their current step; the second one kills them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.assemble.alike import alike_notes
from atrium.assemble.outlook import outlook
from atrium.assemble.sweep_display import SweepDisplay, sweep_display
from atrium.base import plugins
from atrium.base.atomic import explained
from atrium.base.errors import ConfigError, Interrupted, SweepError
from atrium.base.plain_files import append_plain
from atrium.base.processes import END_SIGNALS, stop_requests
from atrium.base.recorded import read_object
from atrium.config.compute import check_alone
from atrium.config.machine import num_usable_cores, visible_gpus
from atrium.config.messages import validate
from atrium.launch.rank_logs import last_words
from atrium.planning.devices import find_gpu
from atrium.runs.provenance import commit_of, gpus
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.files import find_definition, read_definition, tiny
from atrium.sweep.plan import Stage, plan_stage, trial_config
from atrium.sweep.setup import PARENT_VARIABLE, STORAGE_VARIABLE, prepare
from atrium.sweep.snapshot import STATE_FILE, sweep_folder
from atrium.sweep.storage import SweepStorage, storage_url

_POLL_S = 0.5
_MAX_RESTARTS = 100


def sweep_definition(wanted: str, options: Mapping[str, str], overrides: Sequence[str]) -> SweepDefinition:
    """Return the definition of the sweep `wanted`, with the options and overrides of the command line.

    Raises `ConfigError` for invalid options.
    """
    definition = read_definition(find_definition(wanted))
    budget = options.get("budget", "full")
    if budget not in ("full", "tiny"):
        raise ConfigError(f"budget must be full or tiny, got {budget}")
    if budget == "tiny":
        definition = tiny(definition)
    changes: dict[str, object] = {"base": [*definition.base, *overrides]}
    if overrides and definition.baseline is not None and definition.baseline.base is not None:
        baseline = definition.baseline.model_dump(mode="json")
        changes["baseline"] = {**baseline, "base": [*baseline["base"], *overrides]}
    for key in ("name", "runs_dir"):
        if key in options:
            changes[key] = options[key]
    if "trials" in options:
        changes["trials"], *others = _integers(options["trials"], "trials")
        if others:
            raise ConfigError(f"trials must be a single whole number, got {options['trials']}")
    if "seeds" in options:
        changes["seeds"] = _integers(options["seeds"], "seeds")
    data = {**definition.model_dump(mode="json"), **changes}
    return validate(SweepDefinition, data, f"sweep {definition.name}")


def predictions_commit(wanted: str, definition: SweepDefinition) -> str | None:
    """Return the commit that contains the predictions of the sweep `wanted`.

    Returns None if the sweep has no predictions or they are not committed.
    """
    if definition.predictions is None:
        return None
    return commit_of(find_definition(wanted).parent / definition.predictions)


def run_sweep(
    definition: SweepDefinition, storage: str | None, num_workers: int, predicted_at: str | None = None
) -> None:
    """Run a sweep to its end with workers on this machine, and write its report.

    `storage` is `journal`, `sqlite` or the address of a database; None means `journal`. `predicted_at` is the
    commit that contains the sweep's predictions, if any. Raises `Interrupted` after Ctrl-C, and `SweepError`
    if a worker failed.
    """
    from atrium.assemble.checks import check_machine
    from atrium.assemble.sweep_report import report

    config = trial_config(definition, definition.base)
    check_alone(config.compute, "a sweep's worker is one process (use workers=N for more GPUs)")
    check_machine(config)
    folder = sweep_folder(definition.runs_dir, definition.name)
    url, alike = storage_url(storage, folder), _alike(definition)
    sys.stdout.write(f"sweep {definition.name}: {definition.question}\n")
    found = [gpu["name"] for gpu in gpus() if find_gpu(gpu["name"])]
    if found and config.compute.device == "cuda":
        sys.stdout.write("\n".join(outlook(definition, found[0], num_workers)) + "\n")
    sys.stdout.writelines(f"note: {line}\n" for line in alike)
    sys.stdout.flush()
    opened = SweepStorage(url)
    prepare(opened, definition, predicted_at=predicted_at)
    threads = max(1, min(config.compute.num_threads, num_usable_cores() // num_workers))
    workers = [
        _Worker(number, definition, opened.url, folder, threads) for number in range(1, num_workers + 1)
    ]
    _supervise(definition.name, workers, folder)
    report(definition.runs_dir, definition.name, opened.url)


def _alike(definition: SweepDefinition) -> list[str]:
    """Return warnings about planned trials whose methods have identical gradients.

    The result is empty if the sampler does not plan its trials in advance. Raises `ConfigError` if a trial
    cannot be composed, before any file of the sweep is written.
    """
    trials = plan_stage(definition, Stage.SEARCH)
    if not definition.sampler.is_planned:
        return []
    configs = {one.name: trial_config(definition, one.overrides).model_dump(mode="json") for one in trials}
    return alike_notes(configs)


@dataclass
class _Worker:
    """A worker of a sweep; if its process is killed, a new one is started."""

    number: int
    definition: SweepDefinition
    url: str
    folder: Path
    num_threads: int
    process: subprocess.Popen[bytes] | None = None
    num_starts: int = 0

    @property
    def log(self) -> Path:
        return self.folder / f"worker-{self.number}.log"

    def start(self) -> None:
        environment = {
            **os.environ,
            STORAGE_VARIABLE: self.url,
            PARENT_VARIABLE: str(os.getpid()),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self.num_threads)),
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
            **_one_gpu(self.number - 1),
        }
        command = [sys.executable, "-m", "atrium", "sweep", "worker", self.definition.name]
        with explained("write", self.log), append_plain(self.log) as log:
            self.process = subprocess.Popen(
                [*command, f"runs_dir={self.definition.runs_dir}", *plugins.flags()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # only the parent receives Ctrl-C; it then signals the workers
            )
        self.num_starts += 1

    @property
    def exit_code(self) -> int | None:
        return self.process.poll() if self.process is not None else None

    def send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def last_words(self) -> str:
        """Return the error message at the end of the worker's log."""
        return last_words(self.log) or "it printed nothing"


def _supervise(name: str, workers: Sequence[_Worker], folder: Path) -> None:
    """Start the workers, and show the sweep's state until all workers have exited.

    Raises `Interrupted` after a stop signal, and `SweepError` if a worker failed.
    """
    asked: list[int] = []
    with stop_requests(asked.append, [signal.SIGINT, *END_SIGNALS]), sweep_display() as display:
        try:
            for worker in workers:
                worker.start()
            sent = 0
            while any(worker.exit_code is None for worker in workers):
                time.sleep(_POLL_S)
                if len(asked) > sent:
                    _pass_on(workers, display, at_once=sent > 0)
                    sent = len(asked)
                state, _ = read_object(folder / STATE_FILE)
                if state:
                    display.update(state)
                if not asked:
                    _replace_killed(workers, display)
        finally:
            for worker in workers:
                worker.send(signal.SIGKILL)
    codes = [worker.exit_code for worker in workers]
    if asked:
        raise Interrupted(f"sweep {name} stopped; run the same command to resume it")
    if any(codes):
        failed = [worker for worker in workers if worker.exit_code]
        raise SweepError(f"sweep {name}: a worker failed: {failed[0].last_words()}; see {failed[0].log}")


def _pass_on(workers: Sequence[_Worker], display: SweepDisplay, *, at_once: bool) -> None:
    text = "ending all workers at once" if at_once else "stopping after this step; Ctrl-C again stops at once"
    display.message(text)
    for worker in workers:
        worker.send(signal.SIGKILL if at_once else signal.SIGTERM)


def _replace_killed(workers: Sequence[_Worker], display: SweepDisplay) -> None:
    """Restart workers that were killed by a signal, such as by the kernel's out-of-memory killer.

    Each worker is restarted at most `_MAX_RESTARTS` times.
    """
    for worker in workers:
        code = worker.exit_code
        if code is not None and code < 0 and worker.num_starts <= _MAX_RESTARTS:
            display.message(f"worker {worker.number} was killed by signal {-code}; it is replaced")
            worker.start()


def _one_gpu(index: int) -> dict[str, str]:
    """Return the environment variable that gives worker number `index` one of the visible GPUs, round-robin.

    The result is empty if there are no GPUs.
    """
    devices = visible_gpus()
    return {"CUDA_VISIBLE_DEVICES": devices[index % len(devices)]} if devices else {}


def _integers(text: str, name: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ConfigError(
            f"{name} must be a list of whole numbers, got {text}; for example, use {name}=0,1,2"
        )
    return [int(part) for part in parts]
