"""Whether the checkpoint that a run goes on from is one of its model, found before any model is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from atrium.config.models import TinyModelConfig
from atrium.config.schema import RunConfig
from atrium.errors import CheckpointError
from atrium.tracking.layout import RunLayout

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


def check_checkpoint_model(config: RunConfig) -> None:
    """Raise `CheckpointError` where the newest checkpoint of the run to continue has another model's shape.

    What neither the settings nor the checkpoint say is not compared; loading compares every tensor.
    """
    if config.resume is None:
        return
    run = RunLayout(Path(config.resume))
    steps = run.checkpoint_steps()
    if not steps:
        return
    path = run.checkpoint_path(steps[-1])
    try:
        stored = json.loads((path / "policy" / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # a damaged checkpoint is passed over for an older one
    for name, expected in _expected(config).items():
        found = stored.get(name) if isinstance(stored, Mapping) else None
        if found is not None and found != expected:
            raise CheckpointError(
                f"checkpoint {path} is of another model: its {name} is {found}, and the run's model has "
                f"{expected}; bring back the run's own checkpoints, or start a new run"
            )


def _expected(config: RunConfig) -> Mapping[str, object]:
    model = config.model
    if isinstance(model, TinyModelConfig):
        return {name: getattr(model, own) for name, own in _TINY_NAMES.items()}
    architecture = model.architecture or {}
    return {name: architecture[name] for name in _SHAPE if name in architecture}
