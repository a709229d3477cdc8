"""What is checked about the machine before a run loads anything heavy."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from atrium.config.models import HubModelConfig
from atrium.config.schema import RunConfig
from atrium.data.prompts import find_prompt_template
from atrium.errors import ConfigError, RunFolderError

MIN_FREE_MB = 100


def check_before_run(config: RunConfig) -> None:
    """Raise `RunFolderError` or `ConfigError` where the run could not start or not be recorded."""
    _check_runs_dir(Path(config.runs_dir))
    _check_prompt(config.model.prompt)
    if isinstance(config.model, HubModelConfig):
        _check_model_source(config.model.source)


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


def _check_prompt(name: str) -> None:
    try:
        find_prompt_template(name)
    except ConfigError as error:
        raise ConfigError(f"model.prompt={name}: {error}") from error


def _check_model_source(source: str) -> None:
    """A path has to be a folder with a model; anything else is taken for a Hub id."""
    path = Path(source).expanduser()
    looks_like_path = source.startswith((".", "/", "~")) or path.exists() or source.count("/") > 1
    if looks_like_path and not (path / "config.json").is_file():
        raise ConfigError(
            f"model.source={source}: no such model folder (a config.json is looked for); allowed is a "
            "folder that transformers can load, or a Hub id such as Qwen/Qwen3-0.6B"
        )
