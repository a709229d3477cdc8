"""Checks of the machine, its memory, and the checkpoint to resume from, before a run loads the model.

The memory check compares the machine's memory with the minimum that a training step needs: the trained
state, the engine, and an update on one short row with recomputed activations. A run that passes the check may
still run out of memory; a run that fails it cannot fit.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
from itertools import islice
from pathlib import Path

import psutil

from atrium.assemble.disk import check_disk
from atrium.assemble.memory import check_memory, known_shape
from atrium.base.errors import (
    CheckpointError,
    ConfigError,
    MissingDependencyError,
    RunFolderError,
    install_command,
    reason_of,
)
from atrium.base.recorded import read_object
from atrium.base.rows import read_rows
from atrium.config.compute import ComputeConfig
from atrium.config.machine import torch_has_cuda
from atrium.config.schema import RunConfig
from atrium.config.tasks import ProblemsDatasetConfig, ProblemSetConfig, SuiteBenchmarkConfig
from atrium.data.prompts import PromptTemplate
from atrium.data.sources import is_local, locate_files
from atrium.data.splits import check_sizes
from atrium.models.settings import HubModelSettings
from atrium.models.shape import read_shape
from atrium.runs import provenance
from atrium.runs.layout import RunLayout, check_experiment
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, known_status
from atrium.train.checkpoint.checkpoint_files import check_files

MIN_FREE_MB = 100
_OPTIMIZER_PACKAGES = {
    "adamw_8bit": ("bitsandbytes", "bitsandbytes"),
    "adamw_bf16": ("optimi", "torch-optimi"),
}
_COMPARED = (
    "model_type",
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_key_value_heads",
    "head_size",
    "feed_forward_size",
)


def check_machine(config: RunConfig) -> None:
    """Check that this machine can train with `config`; raise an `AtriumError` with the reason if not."""
    check_before_run(config)
    check_optimizer(config.optimizer.kind)
    check_offload(config.compute)
    check_fit(config, device_bytes(config))


def check_before_run(config: RunConfig) -> None:
    """Check the device, the runs directory, the prompt template, local data and models, and the engine.

    The runs directory is created if it does not exist. Raises `ConfigError` for unusable settings,
    `RunFolderError` if the runs directory is not writable or has less than `MIN_FREE_MB` of free space,
    `DataError` if a local dataset has too few rows, and `MissingDependencyError` if the engine needs a
    package that is not installed.
    """
    if config.compute.device == "cuda" and config.compute.slurm is None and not torch_has_cuda():
        raise ConfigError(
            "compute.device=cuda requires a CUDA build of torch, but the installed build has no CUDA; "
            "use cpu, or install a CUDA build"
        )
    if config.resume is None:
        check_experiment(config.experiment_name)
    _check_runs_dir(Path(config.runs_dir))
    _check_prompt(config.model.prompt, thinking=config.model.thinking)
    _check_problem_sources(config)
    if isinstance(config.model, HubModelSettings):
        _check_model_source(config.model.source)
    config.rollout.check_machine(config.compute.device)


def check_optimizer(kind: str) -> None:
    """Raise `MissingDependencyError` if the optimizer `kind` needs a package that is not installed."""
    module, package = _OPTIMIZER_PACKAGES.get(kind, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingDependencyError(
            f"optimizer.kind={kind} requires {package}, which is not installed; run "
            f"{install_command('optimizers')}, or choose optimizer=adamw"
        )


def check_offload(compute: ComputeConfig) -> None:
    """Raise `ConfigError` if `compute.offload` is set for a run on the CPU."""
    if compute.offload and compute.device == "cpu":
        raise ConfigError(
            "compute.offload=true requires a GPU, since it moves state to main memory, but "
            "compute.device=cpu; use compute.offload=false"
        )


def _check_runs_dir(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Checking permissions is not enough: a full or read-only file system grants them too.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
        free_mb = shutil.disk_usage(folder).free // 2**20
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"runs_dir={folder} cannot be used as a folder ({reason_of(error)}); choose another one "
            "with runs_dir=PATH"
        ) from error
    if free_mb < MIN_FREE_MB:
        raise RunFolderError(
            f"runs_dir={folder}: a run needs at least {MIN_FREE_MB} MB, but only {free_mb} MB are free; "
            "free disk space (`atrium clean` lists deletable files) or choose another disk with "
            "runs_dir=PATH"
        )


def _check_prompt(template: PromptTemplate, *, thinking: bool) -> None:
    asks = template.chat_options.get("enable_thinking")
    if asks is not None and asks != thinking:
        does, what = ("requests", "all text") if asks else ("does not request", "only text after it")
        raise ConfigError(
            f"model.prompt={template.name} {does} reasoning, but "
            f"model.thinking={str(thinking).lower()} grades {what}; use "
            f"model.thinking={str(asks).lower()}"
        )


def _check_problem_sources(config: RunConfig) -> None:
    """Raise `ConfigError` if a local problem source does not exist.

    A source that does not look like a path is a Hub id, which is not checked. Also raises `DataError` if
    a local dataset has too few rows.
    """
    sections: dict[str, object] = {"dataset": config.dataset, "benchmark": config.benchmark}
    if isinstance(config.benchmark, SuiteBenchmarkConfig):
        sections |= {f"benchmark.members.{name}": member for name, member in config.benchmark.members.items()}
    for key, section in sections.items():
        if not isinstance(section, ProblemSetConfig) or not is_local(section.source):
            continue
        if not Path(section.source).expanduser().exists():
            raise ConfigError(
                f"{key}.source={section.source}: there is no such file or folder; use a path, or a "
                "Hub id such as openai/gsm8k"
            )
    if isinstance(wanted := config.dataset, ProblemsDatasetConfig) and is_local(wanted.source):
        _check_num_rows(wanted)


def _check_num_rows(wanted: ProblemsDatasetConfig) -> None:
    """Raise `DataError` if a local dataset has fewer rows than the number of problems that the run needs."""
    sizes = wanted.num_train, wanted.num_validation, wanted.num_test
    located = locate_files(wanted.source, wanted.files, revision=None, cache_dir=Path(), log=lambda _: None)
    rows = (row for path in located.paths for row in read_rows(path))
    check_sizes(wanted.name, sum(1 for _ in islice(rows, sum(size or 1 for size in sizes))), *sizes)


def _check_model_source(source: str) -> None:
    """Raise `ConfigError` if a local model source is not a model folder.

    A source that does not look like a path is a Hub id, which is not checked.
    """
    path = Path(source).expanduser()
    looks_like_path = source.startswith((".", "/", "~")) or path.exists() or source.count("/") > 1
    if looks_like_path and not (path / "config.json").is_file():
        raise ConfigError(
            f"model.source={source}: there is no model folder with a config.json; use a folder that "
            "transformers can load, or a Hub id such as Qwen/Qwen3-0.6B"
        )


def device_bytes(config: RunConfig) -> int | None:
    """Return the memory for one process in bytes, or None if it is unknown, as for a SLURM job.

    On GPUs, this is the memory of the smallest GPU that nvidia-smi lists, including GPUs that
    CUDA_VISIBLE_DEVICES hides. On a CPU, it is an equal share of main memory.
    """
    compute = config.compute
    if compute.slurm is not None:
        return None  # the job runs on another machine
    if compute.device == "cpu":
        limit_mb = provenance.memory_limit_mb()
        total = int(psutil.virtual_memory().total)
        return min(total, total if limit_mb is None else limit_mb << 20) // compute.num_processes
    sizes = [int(size[0]) << 20 for gpu in provenance.gpus() if (size := re.match(r"\d+", gpu["memory"]))]
    return min(sizes, default=None)


def gpu_of(config: RunConfig) -> str:
    """Return the name of the first GPU that nvidia-smi lists, even if CUDA_VISIBLE_DEVICES hides that GPU.

    Returns an empty string if there is no GPU, if the run uses the CPU, or if it is a SLURM job.
    """
    if config.compute.device == "cpu" or config.compute.slurm is not None:
        return ""
    return next((gpu["name"] for gpu in provenance.gpus()), "")


def check_fit(config: RunConfig, num_bytes: int | None) -> None:
    """Raise `ConfigError` if a minimal training step does not fit into a process's memory of `num_bytes`.

    If `num_bytes` is None, the memory is unknown and is not checked. Also raises `ConfigError` if the engine
    cannot compute the model, and `RunFolderError` if the disk is too small for the checkpoints. A model of
    unknown shape is checked when it is loaded.
    """
    if (shape := known_shape(config)) is not None:
        check_memory(config, shape, num_bytes)
        check_disk(config, shape)


def check_checkpoint_model(config: RunConfig, from_step: int | None = None) -> None:
    """Raise `CheckpointError` if the model in the checkpoint to resume from differs in shape from the run's.

    The checkpoint is that of `from_step` if given, otherwise the newest one. If the shape of either model is
    unknown, this check is skipped. Every tensor is compared later, when the checkpoint is loaded.
    """
    if config.resume is None:
        return
    run = RunLayout(Path(config.resume))
    steps = [step for step in run.checkpoint_steps() if from_step is None or step == from_step]
    if not steps:
        return
    path = run.checkpoint_path(steps[-1])
    stored, _ = read_object(path / "policy" / "config.json")  # loading the checkpoint reports a damaged file
    found, expected = read_shape(stored), known_shape(config)
    for name in _COMPARED if found and expected else ():
        if (has := getattr(found, name)) != (wanted := getattr(expected, name)):
            raise CheckpointError(
                f"checkpoint {path} belongs to another model, whose {name} is {has} instead of {wanted}; "
                "restore the run's own checkpoints, or start a new run"
            )


def step_to_go_on_from(config: RunConfig, from_step: int | None = None) -> int:
    """Return the step from which a run continues.

    The step is `from_step` if given, otherwise that of the newest checkpoint. It is 0 for a new run and
    for a run without a checkpoint. Raises `ConfigError` if `num_steps` is smaller than the step.
    """
    if config.resume is None:
        return 0
    run = RunLayout(Path(config.resume))
    steps = run.checkpoint_steps()
    step = max(steps, default=0) if from_step is None else from_step
    if config.num_steps < step:
        earlier = [one for one in (0, *steps) if one <= config.num_steps]
        back = f", or rewind with --from-step {earlier[-1]}" if from_step is None else ""
        raise ConfigError(
            f"num_steps must be at least {step}, the step from which {run.path.name} resumes, got "
            f"{config.num_steps}; raise num_steps{back}"
        )
    return step


def is_finished(config: RunConfig) -> bool:
    """Return whether the run to resume is recorded as finished."""
    return known_status(RunLayout(Path(config.resume or "")).status_file).state == RunState.FINISHED


def go_back(run: str, step: int) -> Path | None:
    """Rewind a run to the checkpoint of `step`, and return the folder to which later records were moved.

    `run` is the path of the run directory. Step 0 is the run's start: it needs no checkpoint, and all records
    are moved, including those from before training. Returns None if there were no records to move. Before
    anything is changed, raises `ConfigError` if the step has no checkpoint, `CheckpointError` if the
    checkpoint is damaged, and `RunFolderError` if another process trains the run.
    """
    folder = RunFolder.open(run)
    with folder.lock():
        steps = folder.checkpoint_steps()
        if step not in (0, *steps):
            allowed = ", ".join(map(str, (0, *steps)))
            raise ConfigError(
                f"--from-step {step}: {folder.name} has no checkpoint of step {step}; use one of {allowed}"
            )
        if step:
            check_files(folder.checkpoint_path(step))
        return folder.truncate_after(step or -1)
