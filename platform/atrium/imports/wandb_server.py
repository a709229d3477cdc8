"""Download of runs from a W&B server into a file, and the reader of that file.

The file stores the server's response, so an import of the file reads the same data again. An import from the
server downloads the runs again and replaces the file. The code is tested with a mock of W&B's client, not
with a server.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from atrium.base.atomic import write_json
from atrium.base.errors import ConfigError, DataError
from atrium.base.nested import flattened, mapping_at
from atrium.imports.answers import Source, Stated
from atrium.imports.files import json_object
from atrium.imports.trackers import TrackedRun, add_history, tracked_source

SCHEME = "wandb:"
_SUFFIX = ".wandb.json"


def fetched(source: str, folder: Path) -> Path:
    """Download a run, or all runs of a project, from W&B; return the path of the new file in `folder`.

    `source` is `wandb:ENTITY/PROJECT/RUN` or `wandb:ENTITY/PROJECT`. Raises `ConfigError` for a malformed
    name or a missing API key, and `DataError` if the download fails.
    """
    name = source.removeprefix(SCHEME)
    parts = name.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise ConfigError(f"{source}: expected {SCHEME}ENTITY/PROJECT or {SCHEME}ENTITY/PROJECT/RUN")
    if not os.environ.get("WANDB_API_KEY"):
        raise ConfigError(
            f"{source}: the W&B API key is missing; set WANDB_API_KEY, or import the file of an offline run"
        )
    import wandb  # 1 s

    try:
        api = wandb.Api()
        runs = [api.run(name)] if len(parts) == 3 else api.runs(name)
        found = {
            str(run.id): {"name": run.name, "config": {**run.config}, "history": [*run.scan_history()]}
            for run in runs
        }
    except (wandb.Error, OSError, ValueError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{source}: the runs cannot be downloaded from W&B ({said[:200]}); check the name, the API key "
            "and the connection"
        ) from error
    path = folder / (re.sub(r"[^A-Za-z0-9]+", "-", name) + _SUFFIX)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"runs": found})
    return path


def is_fetched(path: Path) -> bool:
    """Return whether a file has the suffix of runs downloaded from W&B."""
    return path.name.endswith(_SUFFIX)


def read_fetched(path: Path, stated: Stated) -> Source:
    """Read the curves and configurations of downloaded runs."""
    runs = []
    for key, run in mapping_at(json_object(path), "runs").items():
        steps: dict[int, dict[str, object]] = {}
        history = run.get("history") if isinstance(run, dict) else None
        if not isinstance(history, list) or not all(isinstance(one, dict) for one in history):
            raise DataError(
                f"{path} is damaged, since run {key} has no history; delete the file and import again"
            )
        for values in history:
            add_history(steps, values)
        config = flattened(mapping_at(run, "config"))
        runs.append(TrackedRun(method=str(run.get("name") or key), steps=steps, config=config, key=key))
    return tracked_source(path, "runs of W&B", runs, stated)
