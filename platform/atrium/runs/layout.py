"""The layout of a run directory: names and paths of its files, and functions for their size and deletion."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.base.json_lines import Record
from atrium.base.recorded import as_integer, read_object

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}")
SWEEPS_DIR = "sweeps"
"""Folder in `runs_dir` for the files of sweeps; their runs are in folders of experiments, as usual."""
CACHE_DIR = ".cache"
"""Hidden folder in `runs_dir` for cached files, which can be recreated."""
IMPORTED = "imported"
"""The value of `kind` in the `config.json` of a run that was imported from another program."""
TRAINING = "training_rollouts"
"""Benchmark name under which imported completions of training batches are stored."""
RESERVED = (SWEEPS_DIR, "reports", "mlflow.db")
"""Entries of `runs_dir` that are not experiments and are not searched for runs."""
_STEP_NAME = re.compile(r"step-(\d{1,12})(?:\.parquet)?")


def step_name(step: int) -> str:
    """Return the name used for files and folders of a step, such as `step-000040`."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step in a name such as `step-000040` or `step-000040.parquet`, or None for other names."""
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def check_name(name: str, what: str) -> None:
    """Raise `ConfigError` unless `name` is a plain folder name; `what` describes it in the message."""
    if not NAME_PATTERN.fullmatch(name) or name.endswith("."):
        raise ConfigError(
            f"{what} must start with a letter or digit, and contain only letters, digits and any of . _ "
            f"+ = -, with at most 100 characters, got {name!r}"
        )


def check_experiment(name: str) -> None:
    """Raise `ConfigError` if the name of a new experiment is not a plain folder name or is reserved."""
    check_name(name, "experiment_name")
    if name.lower() in RESERVED:  # some file systems do not distinguish upper and lower case
        raise ConfigError(
            f"experiment_name={name} is reserved in runs_dir, so no command would find the runs; use any "
            f"name except {', '.join(RESERVED)}"
        )


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) for each file and folder in `folder` that is named after a step, ordered by step.

    The list is empty if `folder` does not exist.
    """
    try:
        found = [(step_of(path.name), path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((step, path) for step, path in found if step is not None)


def until(step: int) -> Callable[[Record], bool]:
    """Return a predicate that accepts the records of `step` and of earlier steps."""

    def is_until(record: Record) -> bool:
        recorded = record.get("step")
        return isinstance(recorded, int) and recorded <= step

    return is_until


class _Part:
    """A descriptor for the path of a file or folder in the run directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunLayout, _type: object = None) -> Path:
        return run.path / self._name


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths of the files and folders in the run directory `path`; none of them needs to exist."""

    path: Path

    config_file = _Part("config.json")
    """The resolved configuration, `config.json`."""
    method_file = _Part("method.json")
    """The method's window, description and key, `method.json`; runs of earlier versions have none."""
    overrides_file = _Part("overrides.yaml")
    """The settings typed on the command line, `overrides.yaml`: a list of `key=value`."""
    provenance_file = _Part("provenance.json")
    """Code, packages, machine and data, `provenance.json`."""
    plugins_dir = _Part("plugins")
    """Copies of the plugins' files, `plugins/`: for people to read, never executed."""
    engines_dir = _Part("engines")
    """Output of inference servers, `engines/`: one file per server."""
    metrics_file = _Part("metrics.jsonl")
    """The metrics, `metrics.jsonl`: one object per step."""
    ratios_file = _Part("ratios.jsonl")
    """Histograms of the importance ratios, `ratios.jsonl`: one object per step."""
    system_file = _Part("system.jsonl")
    """The state of the machine over time, `system.jsonl`; missing if it was not recorded."""
    evaluations_file = _Part("evaluations.jsonl")
    """Scores of evaluations, `evaluations.jsonl`: one object per benchmark and step."""
    log_file = _Part("log.txt")
    """The messages of the run, `log.txt`."""
    status_file = _Part("status.json")
    """The state of the run, `status.json`."""
    summary_file = _Part("summary.json")
    """The results, `summary.json`; written when a run ends, so a killed run has none."""
    rollouts_dir = _Part("rollouts")
    """Training rollouts, `rollouts/`: one Parquet file per recorded step."""
    evaluations_dir = _Part("evaluations")
    """Samples of evaluations, `evaluations/`: a folder per benchmark with one Parquet file per step."""
    checkpoints_dir = _Part("checkpoints")
    """Checkpoints, written by training: `step-000040/` with `policy/` inside, and `best.json`."""
    set_aside_dir = _Part("set-aside")
    """Records that the run no longer uses, `set-aside/`: a folder for each time that the run was rewound."""
    figures_dir = _Part("figures")
    """Figures as PNG files, `figures/`."""
    faults_dir = _Part("faults")
    """Minibatches of skipped updates, `faults/`, as safetensors and JSON."""
    profile_dir = _Part("profile")
    """Traces of profiled steps, `profile/`, for Perfetto."""
    best_file = _Part("checkpoints/best.json")
    """The step of the best checkpoint, `checkpoints/best.json`."""

    @property
    def name(self) -> str:
        """The name by which commands find the run, `<experiment>/<run>`."""
        path = self.path.absolute()
        return f"{path.parent.name}/{path.name}"

    @property
    def cache_dir(self) -> Path:
        """The folder `.cache/` in the runs directory that contains this run."""
        return self.path.parent.parent / CACHE_DIR

    @property
    def line_files(self) -> tuple[Path, ...]:
        """The JSON Lines files in which every line belongs to a step: metrics, ratios and evaluations."""
        return self.metrics_file, self.ratios_file, self.evaluations_file

    def sample_folders(self) -> list[Path]:
        """Return the folders with one file per step: the folder of rollouts, and one folder per benchmark."""
        return [self.rollouts_dir, *(path for path in self.evaluations_dir.glob("*") if path.is_dir())]

    def rollouts_path(self, step: int) -> Path:
        """Return the path of the Parquet file with a step's rollouts."""
        return self.rollouts_dir / f"{step_name(step)}.parquet"

    def evaluation_path(self, benchmark: str, step: int) -> Path:
        """Return the path of the Parquet file with a benchmark's samples at a step.

        Raises `ConfigError` if the benchmark's name is not a plain folder name.
        """
        check_name(benchmark, "the benchmark's name")
        return self.evaluations_dir / benchmark / f"{step_name(step)}.parquet"

    def checkpoint_path(self, step: int) -> Path:
        """Return the path of a step's checkpoint, which is a folder."""
        return self.checkpoints_dir / step_name(step)

    def checkpoint_steps(self) -> tuple[int, ...]:
        """Return the steps that have a checkpoint, in order."""
        return tuple(step for step, path in steps_in(self.checkpoints_dir) if path.is_dir())

    def best_checkpoint_step(self) -> int | None:
        """Return the step of the best checkpoint from `checkpoints/best.json`, or None if not recorded."""
        content, _ = read_object(self.best_file)
        return as_integer(content.get("step"))


def folder_size(path: Path) -> int:
    """Return the total size in bytes of all files below `path`; links are not followed."""
    total = 0
    for root, _, files in os.walk(path):
        for file in files:
            try:
                total += os.lstat(os.path.join(root, file)).st_size  # noqa: PTH118 - a hot loop
            except OSError:
                continue
    return total


def remove(path: Path) -> None:
    """Delete a file, a link, or a folder with its content; links are removed, not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
