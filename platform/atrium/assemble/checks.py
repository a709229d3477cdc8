"""Checks before a run loads anything heavy: the machine, its memory, and the stored checkpoint.

A language model's training must fit into the machine's memory at all. `atrium memory`'s plan gives the
minimum that a step needs: the trained state, the engine, and an update on one short row with activations
recomputed. A run that passes may still not fit; a refused one cannot.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
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
)
from atrium.base.plain_files import read_plain
from atrium.config.compute import ComputeConfig
from atrium.config.machine import torch_has_cuda
from atrium.config.schema import RunConfig
from atrium.config.tasks import ProblemSetConfig, SuiteBenchmarkConfig
from atrium.data.prompts import PromptTemplate
from atrium.data.sources import is_local
from atrium.models.settings import HubModelSettings
from atrium.models.shape import read_shape
from atrium.runs import provenance
from atrium.runs.layout import RunLayout, check_experiment
from atrium.runs.run_folder import RunFolder
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
    """Raise an error that explains why this machine cannot train with `config`."""
    check_before_run(config)
    check_optimizer(config.optimizer.kind)
    check_offload(config.compute)
    check_fit(config, device_bytes(config))


def check_before_run(config: RunConfig) -> None:
    """Raise `RunFolderError` or `ConfigError` if the run could not start or could not be recorded."""
    if config.compute.device == "cuda" and config.compute.slurm is None and not torch_has_cuda():
        raise ConfigError(
            "compute.device=cuda: the installed torch is a build without CUDA; "
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
    """Raise `MissingDependencyError` if the package of an optimizer is not installed."""
    module, package = _OPTIMIZER_PACKAGES.get(kind, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingDependencyError(
            f"optimizer.kind={kind} needs {package}, which is not installed; run "
            f"{install_command('optimizers')}, or choose optimizer=adamw"
        )


def check_offload(compute: ComputeConfig) -> None:
    """Raise `ConfigError` if there is no GPU to offload from."""
    if compute.offload and compute.device == "cpu":
        raise ConfigError(
            "compute.offload=true moves state from a GPU to main memory, but compute.device=cpu; use false"
        )


def _check_runs_dir(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Checking permissions is not enough: a full or read-only file system grants them too.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
        free_mb = shutil.disk_usage(folder).free // 2**20
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RunFolderError(
            f"runs_dir={folder}: cannot write there ({reason}); choose a folder of yours with runs_dir=PATH"
        ) from error
    if free_mb < MIN_FREE_MB:
        raise RunFolderError(
            f"runs_dir={folder}: {free_mb} MB are free, but a run needs at least {MIN_FREE_MB}; free disk "
            "space (`atrium clean` lists what runs can spare) or choose another disk with runs_dir=PATH"
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
    """Check that a source that looks like a path exists; anything else counts as a Hub id."""
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


def _check_model_source(source: str) -> None:
    """Check that a path is a folder with a model; anything else counts as a Hub id."""
    path = Path(source).expanduser()
    looks_like_path = source.startswith((".", "/", "~")) or path.exists() or source.count("/") > 1
    if looks_like_path and not (path / "config.json").is_file():
        raise ConfigError(
            f"model.source={source}: there is no model folder (it must contain config.json); use a folder "
            "that transformers can load, or a Hub id such as Qwen/Qwen3-0.6B"
        )


def device_bytes(config: RunConfig) -> int | None:
    """Return the memory that one process may use, a GPU's or a share of the machine's; None if unknown."""
    compute = config.compute
    if compute.slurm is not None:
        return None  # another machine runs it
    if compute.device == "cpu":
        limit_mb = provenance.memory_limit_mb()
        total = int(psutil.virtual_memory().total)
        return min(total, total if limit_mb is None else limit_mb << 20) // compute.num_processes
    sizes = [int(size[0]) << 20 for gpu in provenance.gpus() if (size := re.match(r"\d+", gpu["memory"]))]
    return min(sizes, default=None)


def gpu_of(config: RunConfig) -> str:
    """Return the name of the GPU that a run uses; empty without a GPU or if another machine runs it."""
    if config.compute.device == "cpu" or config.compute.slurm is not None:
        return ""
    return next((gpu["name"] for gpu in provenance.gpus()), "")


def check_fit(config: RunConfig, num_bytes: int | None) -> None:
    """Raise `ConfigError` if a step of `config` does not fit into the `num_bytes` of a process.

    Raises `RunFolderError` if the disk is too small for the checkpoints. A model of unknown shape is checked
    when it is loaded.
    """
    if (shape := known_shape(config)) is not None:
        check_memory(config, shape, num_bytes)
        check_disk(config, shape)


def check_checkpoint_model(config: RunConfig, from_step: int | None = None) -> None:
    """Raise `CheckpointError` if the checkpoint to resume from has another model's shape.

    That is the newest one, or that of `from_step`. Values missing in both the settings and the checkpoint are
    not compared; loading compares every tensor.
    """
    if config.resume is None:
        return
    run = RunLayout(Path(config.resume))
    steps = [step for step in run.checkpoint_steps() if from_step is None or step == from_step]
    if not steps:
        return
    path = run.checkpoint_path(steps[-1])
    try:
        stored = json.loads(read_plain(path / "policy" / "config.json"))
    except (OSError, ValueError):
        return  # loading the checkpoint reports the problem
    found, expected = read_shape(stored if isinstance(stored, Mapping) else None), known_shape(config)
    for name in _COMPARED if found and expected else ():
        if (has := getattr(found, name)) != (wanted := getattr(expected, name)):
            raise CheckpointError(
                f"checkpoint {path} is of another model: its {name} is {has}, and the run's model has "
                f"{wanted}; restore the run's own checkpoints, or start a new run"
            )


def step_to_go_on_from(config: RunConfig, from_step: int | None = None) -> int:
    """Return the step of the checkpoint that a resumed run continues from, 0 for its start.

    That is the newest one, or that of `from_step`. Raises `ConfigError` if the run would end before it.
    """
    if config.resume is None:
        return 0
    run = RunLayout(Path(config.resume))
    steps = run.checkpoint_steps()
    step = max(steps, default=0) if from_step is None else from_step
    if config.num_steps < step:
        earlier = [one for one in (0, *steps) if one <= config.num_steps]
        back = f"; or rewind with --from-step {earlier[-1]}" if from_step is None else ""
        raise ConfigError(
            f"num_steps={config.num_steps} must be at least {step}, the step that {run.path.name} resumes "
            f"from{back}"
        )
    return step


def go_back(run: str, step: int) -> Path | None:
    """Rewind a run to the checkpoint of `step`; return the folder with the later records.

    Step 0 is the start, which needs no checkpoint. Raises `ConfigError` for a step without a checkpoint and
    `CheckpointError` for a damaged one; nothing is changed then.
    """
    folder = RunFolder.open(run)
    with folder.lock():
        steps = folder.checkpoint_steps()
        if step not in (0, *steps):
            allowed = ", ".join(map(str, (0, *steps)))
            raise ConfigError(f"--from-step {step}: {folder.name} has no such checkpoint; use {allowed}")
        if step:
            check_files(folder.checkpoint_path(step))
        return folder.truncate_after(step or -1)
