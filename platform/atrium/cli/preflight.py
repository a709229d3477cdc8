"""What is checked about the machine before a run loads anything heavy."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

from atrium.config.compute import ComputeConfig
from atrium.config.models import HubModelConfig, ModelConfig, TinyModelConfig
from atrium.config.problem_sets import ProblemSetConfig
from atrium.config.rollouts import VllmRolloutConfig
from atrium.config.schema import RunConfig
from atrium.config.tasks import SuiteBenchmarkConfig
from atrium.data.prompts import find_prompt_template
from atrium.data.sources import is_local
from atrium.errors import ConfigError, MissingDependencyError, RunFolderError
from atrium.rollout.vllm_environment import CPU_HEAD_SIZES, check_vllm
from atrium.rollout.vllm_split import VOCABULARY_UNIT, SplitShape, check_split
from atrium.tracking.layout import check_experiment

MIN_FREE_MB = 100
_SHAPE_KEYS = {
    "num_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "feed_forward_size": "intermediate_size",
    "vocabulary_size": "vocab_size",
}
_OPTIMIZER_PACKAGES = {
    "adamw_8bit": ("bitsandbytes", "bitsandbytes"),
    "adamw_bf16": ("optimi", "torch-optimi"),
}


def check_before_run(config: RunConfig) -> None:
    """Raise `RunFolderError` or `ConfigError` where the run could not start or not be recorded."""
    if config.resume is None:
        check_experiment(config.experiment_name)
    _check_runs_dir(Path(config.runs_dir))
    _check_prompt(config.model.prompt, thinking=config.model.thinking)
    _check_problem_sources(config)
    if isinstance(config.model, HubModelConfig):
        _check_model_source(config.model.source)
    if isinstance(config.rollout, VllmRolloutConfig):
        check_vllm(config.compute.device)
        _check_split(config.model, config.rollout.tensor_parallel)
        if config.compute.device == "cpu":
            _check_vllm_on_cpu(config.model, config.rollout)


def check_optimizer(kind: str) -> None:
    """Raise `MissingDependencyError` where the package that computes an optimiser is not installed."""
    module, package = _OPTIMIZER_PACKAGES.get(kind, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingDependencyError(
            f"optimizer.kind={kind} needs {package}, which is not installed; run "
            "`make install EXTRAS=optimizers`, or choose optimizer=adamw"
        )


def check_offload(compute: ComputeConfig) -> None:
    """Raise `ConfigError` where there is no GPU that something could be moved from."""
    if compute.offload and compute.device == "cpu":
        raise ConfigError(
            "compute.offload=true moves what a GPU holds to main memory, where with compute.device=cpu "
            "everything lies; allowed is false"
        )


def _check_runs_dir(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Asking for permission is not enough: a full or read-only file system grants it too.
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
            f"runs_dir={folder}: {free_mb} MB are free, a run needs at least {MIN_FREE_MB}; make room "
            "(`atrium clean` says what runs can spare) or choose another disk with runs_dir=PATH"
        )


def _check_prompt(name: str, *, thinking: bool) -> None:
    try:
        template = find_prompt_template(name)
    except ConfigError as error:
        raise ConfigError(f"model.prompt={name}: {error}") from error
    asks = template.chat_options.get("enable_thinking")
    if asks is not None and asks != thinking:
        does, reads = ("asks", "not") if asks else ("does not ask", "only")
        raise ConfigError(
            f"model.prompt={name} {does} for a thought, and model.thinking={str(thinking).lower()} grades "
            f"what stands {reads} after one; allowed is model.thinking={str(asks).lower()}"
        )


def _check_problem_sources(config: RunConfig) -> None:
    """What looks like a path has to be there; anything else is taken for a Hub id."""
    sections: dict[str, object] = {"dataset": config.dataset, "benchmark": config.benchmark}
    if isinstance(config.benchmark, SuiteBenchmarkConfig):
        sections |= {f"benchmark.members.{name}": member for name, member in config.benchmark.members.items()}
    for key, section in sections.items():
        if not isinstance(section, ProblemSetConfig) or not is_local(section.source):
            continue
        if not Path(section.source).expanduser().exists():
            raise ConfigError(
                f"{key}.source={section.source}: there is no such file or folder; allowed is a path, or a "
                "Hub id such as openai/gsm8k"
            )


def _check_model_source(source: str) -> None:
    """A path has to be a folder with a model; anything else is taken for a Hub id."""
    path = Path(source).expanduser()
    looks_like_path = source.startswith((".", "/", "~")) or path.exists() or source.count("/") > 1
    if looks_like_path and not (path / "config.json").is_file():
        raise ConfigError(
            f"model.source={source}: no such model folder (a config.json is looked for); allowed is a "
            "folder that transformers can load, or a Hub id such as Qwen/Qwen3-0.6B"
        )


def _check_vllm_on_cpu(model: ModelConfig, rollout: VllmRolloutConfig) -> None:
    """What vLLM has for GPUs only."""
    if isinstance(model, TinyModelConfig) and model.head_dim not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"model.head_dim={model.head_dim}: vLLM has no kernel for such attention heads on a CPU; "
            f"allowed is {', '.join(str(size) for size in CPU_HEAD_SIZES)}, or rollout=transformers"
        )
    if rollout.kv_cache_mb is None:
        raise ConfigError(
            "rollout.kv_cache_mb=null takes a share of a GPU's memory, and compute.device=cpu has none; "
            "give megabytes, or choose rollout=vllm_cpu"
        )
    if rollout.sleep_level is not None or rollout.kv_cache_dtype != "auto":
        raise ConfigError(
            f"rollout.sleep_level={rollout.sleep_level} and rollout.kv_cache_dtype={rollout.kv_cache_dtype}: "
            "both are for GPUs, and compute.device=cpu; allowed is null and auto"
        )


def _check_split(model: ModelConfig, tensor_parallel: int) -> None:
    """Whether vLLM can split the model, where its shape is written down; a config.json is read later."""
    if isinstance(model, TinyModelConfig):
        names = ("num_heads", "num_key_value_heads", "feed_forward_size")
        sizes = {name: getattr(model, name) for name in names} | {"vocabulary_size": VOCABULARY_UNIT}
    else:
        known = model.architecture or {}
        sizes = {name: size for name, key in _SHAPE_KEYS.items() if isinstance(size := known.get(key), int)}
    if len(sizes) == len(_SHAPE_KEYS):
        check_split(SplitShape(**sizes), tensor_parallel)
