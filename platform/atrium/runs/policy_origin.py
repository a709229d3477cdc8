"""The file `atrium.json` in a policy's folder: the prompt and sampling settings of its training run.

An evaluation of the policy uses these settings; settings on the command line take precedence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from atrium.base.errors import RunFolderError
from atrium.base.nested import setting
from atrium.base.plain_files import read_plain

_FILE = "atrium.json"
ASKED_BY = (
    *("model.prompt", "model.thinking", "model.date"),
    *("evaluation.temperature", "evaluation.top_p", "evaluation.top_k", "evaluation.min_p"),
    *("evaluation.repetition_penalty", "evaluation.presence_penalty", "evaluation.frequency_penalty"),
    "evaluation.max_new_tokens",
)
"""Settings of a run that are stored with its policy: prompt, date, thinking mode and sampling."""


def write_origin(policy: Path, config: Mapping[str, object], *, run: str, step: int | None = None) -> None:
    """Write the prompt and sampling settings of a run to `atrium.json` in a policy's folder.

    `config` is the run's recorded configuration; only its settings in `ASKED_BY` are written, without those
    that are null. `run` is the name of the run. `step` is the training step of an exported policy; it is None
    inside a checkpoint, whose name contains the step.
    """
    asked = {key: setting(config, key) for key in ASKED_BY if setting(config, key) is not None}
    text = json.dumps({"run": run, "step": step, "asked": asked}, indent=2)
    (policy / _FILE).write_text(f"{text}\n", encoding="utf-8")


def read_origin(policy: Path) -> dict[str, object]:
    """Return the settings in a policy's `atrium.json` by dotted key, without validating them.

    The result is empty if there is no such file. Raises `RunFolderError` if the file is damaged.
    """
    path = policy / _FILE
    if not path.is_file():
        return {}
    try:
        asked = json.loads(read_plain(path))["asked"]
        return {key: asked[key] for key in ASKED_BY if key in asked}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{path} is damaged ({type(error).__name__}); export the policy again, or delete the file"
        ) from error
