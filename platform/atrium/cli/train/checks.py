"""What is checked before a run loads anything heavy: the machine, its memory, and the stored checkpoint.

A language model's training must fit the machine's memory at all. The least that a step needs is known by
the plan of `atrium memory`: the trained state, what the engine takes, and an update on one short row with
activations computed again. What passes may still not fit; what is refused cannot.
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

from atrium.config.compute import ComputeConfig
from atrium.config.models import HubModelConfig, ModelConfig, TinyModelConfig
from atrium.config.problem_sets import ProblemSetConfig
from atrium.config.rollouts import VllmRolloutConfig
from atrium.config.scale import count_parameters, known_architecture
from atrium.config.schema import RunConfig
from atrium.config.tasks import SuiteBenchmarkConfig
from atrium.data.prompts import find_prompt_template
from atrium.data.sources import is_local
from atrium.errors import CheckpointError, ConfigError, MissingDependencyError, RunFolderError
from atrium.rollout.vllm_environment import CPU_HEAD_SIZES, check_vllm
from atrium.rollout.vllm_split import VOCABULARY_UNIT, SplitShape, check_split
from atrium.tracking import provenance
from atrium.tracking.layout import RunLayout, check_experiment
from atrium.tracking.run_folder import RunFolder
from atrium.train.checkpoint.checkpoint_files import check_files
from atrium.train.memory_plan import MemoryItem, MemorySettings, ModelDimensions, peak_by_phase, plan_memory

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
_ROW_TOKENS = 64
_GB = 1e9
_SHAPE = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)
_TINY_NAMES = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "feed_forward_size",
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


def device_bytes(config: RunConfig) -> int | None:
    """The memory that one process may use: its GPU's, or its share of the machine's. None where not known."""
    compute = config.compute
    if compute.slurm is not None:
        return None  # another machine runs it
    if compute.device == "cpu":
        limit_mb = provenance.memory_limit_mb()
        total = int(psutil.virtual_memory().total)
        return min(total, total if limit_mb is None else limit_mb << 20) // compute.num_processes
    sizes = [int(size[0]) << 20 for gpu in provenance.gpus() if (size := re.match(r"\d+", gpu["memory"]))]
    return min(sizes, default=None)


def check_fit(config: RunConfig, num_bytes: int | None) -> None:
    """Raise `ConfigError` where a step of `config` cannot be done in the `num_bytes` that a process has."""
    model = config.model
    if num_bytes is None or not isinstance(model, HubModelConfig):
        return
    dimensions = _dimensions(model)
    if dimensions is None:
        return  # found when its config.json is there
    items = plan_memory(dimensions, _least(config, dimensions, num_bytes))
    peaks = peak_by_phase(items)
    phase = max(peaks, key=lambda each: peaks[each])
    if peaks[phase] <= num_bytes:
        return
    held = sorted((item for item in items if phase in item.phases), key=lambda item: -item.num_bytes)
    memory = "main memory" if config.compute.device == "cpu" else "GPU memory"
    raise ConfigError(
        f"model.source={model.source}: training takes at least {_gb(peaks[phase])} of {memory} in a process ("
        + ", ".join(f"{item.name} {_gb(item.num_bytes)}" for item in held[:3])
        + f"), and there are {_gb(num_bytes)}; {_advice(config, held)}"
    )


def _advice(config: RunConfig, held: list[MemoryItem]) -> str:
    """What takes less: the settings that lower the largest items, as far as they apply."""
    adapters = [] if config.model.lora else ["model.lora"]
    if config.compute.device == "cpu":
        return f"what takes less: {', '.join([*adapters, 'a GPU'])}, or a smaller model"
    settings = dict.fromkeys(name for item in held[:3] for name in item.lowered_by.split(", "))
    lowered = [name for name in settings if name.startswith(("rollout.", "optimizer=", "compute.offload"))]
    less = ", ".join([*lowered, *adapters, "compute=node on more GPUs"])
    return f"what takes less: {less}, or a smaller model"


def _dimensions(model: HubModelConfig) -> ModelDimensions | None:
    known = known_architecture(model)
    num_parameters = count_parameters(known)
    if known is None or num_parameters is None:
        return None

    def size(key: str, otherwise: int = 0) -> int:
        value = known.get(key)
        return value if isinstance(value, int) else otherwise

    heads = size("num_attention_heads")
    return ModelDimensions(
        model_type=str(known.get("model_type")),
        num_parameters=num_parameters,
        num_tensors=0,
        num_layers=size("num_hidden_layers"),
        hidden_size=size("hidden_size"),
        feed_forward_size=size("intermediate_size"),
        num_heads=heads,
        num_key_value_heads=size("num_key_value_heads", heads),
        head_size=size("head_dim", size("hidden_size") // heads),
        vocabulary_size=size("vocab_size"),
    )


def _least(config: RunConfig, model: ModelDimensions, num_bytes: int) -> MemorySettings:
    rollout, compute = config.rollout, config.compute
    has_lora, reference = config.model.lora is not None, config.algorithm.reference.kind
    return MemorySettings(
        compute_dtype=compute.dtype,
        micro_batch_tokens=_ROW_TOKENS,
        batch_tokens=_ROW_TOKENS,
        cache_tokens=_ROW_TOKENS,
        has_reference=reference != "none" and not (reference == "frozen" and has_lora),
        engine_bytes=_engine_bytes(config, model, num_bytes),
        engine_sleeps=isinstance(rollout, VllmRolloutConfig) and rollout.sleep_level is not None,
        optimizer=config.optimizer.kind,
        num_ranks=compute.world_size,
        offload=compute.offload,
        num_adapter_parameters=int(has_lora),  # too few to count
        num_adapter_tensors=int(has_lora),
        recomputes=True,
    )


def _engine_bytes(config: RunConfig, model: ModelDimensions, num_bytes: int) -> int:
    """What an engine with memory of its own takes: what it is given, or else its weights."""
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig):
        return 0
    if rollout.kv_cache_mb is None and isinstance(rollout, VllmRolloutConfig):
        return int(rollout.gpu_memory_fraction * num_bytes)
    weights = (2 if config.compute.dtype == "bfloat16" else 4) * model.num_parameters
    return weights // rollout.ranks_per_engine + ((rollout.kv_cache_mb or 0) << 20)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / _GB:.1f} GB"


def check_checkpoint_model(config: RunConfig, from_step: int | None = None) -> None:
    """Raise `CheckpointError` where the checkpoint that the run goes on from has another model's shape.

    That is the newest one, or that of `from_step`. What neither the settings nor the checkpoint say is not
    compared; loading compares every tensor.
    """
    if config.resume is None:
        return
    run = RunLayout(Path(config.resume))
    steps = [step for step in run.checkpoint_steps() if from_step is None or step == from_step]
    if not steps:
        return
    path = run.checkpoint_path(steps[-1])
    try:
        stored = json.loads((path / "policy" / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # whoever loads the checkpoint says what is wrong with it
    for name, expected in _expected(config).items():
        found = stored.get(name) if isinstance(stored, Mapping) else None
        if found is not None and found != expected:
            raise CheckpointError(
                f"checkpoint {path} is of another model: its {name} is {found}, and the run's model has "
                f"{expected}; bring back the run's own checkpoints, or start a new run"
            )


def go_back(run: str, step: int) -> Path | None:
    """Make `step` the last of the run that has a checkpoint; the folder that holds what came later.

    Step 0 is the start, which needs none. Raises `ConfigError` for a step without a checkpoint and
    `CheckpointError` for one whose checkpoint is damaged; nothing is changed then.
    """
    folder = RunFolder.open(run)
    with folder.lock():
        steps = folder.checkpoint_steps()
        if step not in (0, *steps):
            allowed = ", ".join(map(str, (0, *steps)))
            raise ConfigError(
                f"--from-step {step}: {folder.name} has no such checkpoint; allowed are {allowed}"
            )
        if step:
            check_files(folder.checkpoint_path(step))
        return folder.truncate_after(step or -1)


def _expected(config: RunConfig) -> Mapping[str, object]:
    model = config.model
    if isinstance(model, TinyModelConfig):
        return {name: getattr(model, own) for name, own in _TINY_NAMES.items()}
    architecture = model.architecture or {}
    return {name: architecture[name] for name in _SHAPE if name in architecture}
