"""The layout of a run folder: locations, names, sizes and deletion of its parts."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.base.recorded import as_integer, read_object

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}")
SWEEPS_DIR = "sweeps"
CACHE_DIR = ".cache"
"""Folder of runs_dir in which sweeps keep their own files; their runs are in the usual folders."""
IMPORTED = "imported"
"""The `kind` in the config.json of a run that another program made."""
TRAINING = "training_rollouts"
"""The benchmark of imported completions of training batches."""
_TAKEN = (SWEEPS_DIR, "reports", "mlflow.db")
"""Entries of runs_dir that are not experiments and are not searched for runs."""
_STEP_NAME = re.compile(r"step-(\d{1,12})(?:\.parquet)?")


def step_name(step: int) -> str:
    """Return a step's name in files and folders, such as `step-000040`."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step in a name such as `step-000040` or `step-000040.parquet`, or None."""
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def check_name(name: str, what: str) -> None:
    """Raise `ConfigError` unless `name` is a plain folder name without separators."""
    if not NAME_PATTERN.fullmatch(name) or name.endswith("."):
        raise ConfigError(
            f"{what} is {name!r}, but it must be a folder's name: a letter or digit first, then letters, "
            "digits and any of . _ + = -, at most 100 characters"
        )


def check_experiment(name: str) -> None:
    """Raise `ConfigError` unless a new experiment's folder in runs_dir can have this name."""
    check_name(name, "experiment_name")
    if name.lower() in _TAKEN:  # some file systems do not distinguish upper and lower case
        raise ConfigError(
            f"experiment_name={name}: this name is reserved in runs_dir, and no command would find the "
            f"runs; use any name except {', '.join(_TAKEN)}"
        )


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """Return the entries of a folder that belong to steps, in order; none for a missing folder."""
    try:
        found = [(step_of(path.name), path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((step, path) for step, path in found if step is not None)


class _Part:
    """A file or folder of a run by its path below the run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunLayout, _type: object = None) -> Path:
        return run.path / self._name


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths of one run. `path` need not exist."""

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
    """Output of servers, `engines/`: a file for each."""
    metrics_file = _Part("metrics.jsonl")
    """One object per step, `metrics.jsonl`."""
    ratios_file = _Part("ratios.jsonl")
    """The distribution of the ratios of each step, one object per step, `ratios.jsonl`."""
    evaluations_file = _Part("evaluations.jsonl")
    """One object per evaluation, `evaluations.jsonl`."""
    log_file = _Part("log.txt")
    """The messages of the run, `log.txt`."""
    status_file = _Part("status.json")
    """The state of the run, `status.json`."""
    summary_file = _Part("summary.json")
    """The results, `summary.json`; present once a run has ended."""
    rollouts_dir = _Part("rollouts")
    """Sampled training rollouts, one Parquet file per recorded step."""
    evaluations_dir = _Part("evaluations")
    """Evaluated samples, one folder per benchmark with one Parquet file per step."""
    checkpoints_dir = _Part("checkpoints")
    """Checkpoints, written by training: `step-000040/` with `policy/` inside, and `best.json`."""
    set_aside_dir = _Part("set-aside")
    """Records that the run no longer uses, one folder for each time that it was rewound."""
    figures_dir = _Part("figures")
    """Figures as PNG."""
    faults_dir = _Part("faults")
    """Minibatches of updates that were skipped, as safetensors and JSON."""
    profile_dir = _Part("profile")
    """Traces of profiled steps, for Perfetto."""
    best_file = _Part("checkpoints/best.json")
    """The step of the best checkpoint, `checkpoints/best.json`."""

    @property
    def name(self) -> str:
        """`<experiment>/<run>`, by which commands find the run."""
        path = self.path.absolute()
        return f"{path.parent.name}/{path.name}"

    @property
    def cache_dir(self) -> Path:
        """`runs/.cache/` of the runs folder that contains this run."""
        return self.path.parent.parent / CACHE_DIR

    def rollouts_path(self, step: int) -> Path:
        """Return the file of a step's rollouts."""
        return self.rollouts_dir / f"{step_name(step)}.parquet"

    def evaluation_path(self, benchmark: str, step: int) -> Path:
        """Return the file of a benchmark's samples at a step."""
        check_name(benchmark, "the benchmark's name")
        return self.evaluations_dir / benchmark / f"{step_name(step)}.parquet"

    def checkpoint_path(self, step: int) -> Path:
        """Return the folder of the checkpoint at a step."""
        return self.checkpoints_dir / step_name(step)

    def checkpoint_steps(self) -> tuple[int, ...]:
        """Return the steps that have a checkpoint, in order."""
        return tuple(step for step, path in steps_in(self.checkpoints_dir) if path.is_dir())

    def best_checkpoint_step(self) -> int | None:
        """Return the step in `checkpoints/best.json`, or None if there is none."""
        content, _ = read_object(self.best_file)
        return as_integer(content.get("step"))


def folder_size(path: Path) -> int:
    """Return the bytes of all files below `path`, without following links; vanished files count 0."""
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
