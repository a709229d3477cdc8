"""The checkpoint that a run goes on from: whether it is one of its model, and going back to an older one.

Both before any model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from atrium.config.models import TinyModelConfig
from atrium.config.schema import RunConfig
from atrium.errors import CheckpointError, ConfigError
from atrium.tracking.layout import RunLayout
from atrium.tracking.run_folder import RunFolder
from atrium.train.checkpoint_files import check_files

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
