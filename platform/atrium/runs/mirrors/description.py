"""A run's description for trackers, apart from its metrics: settings, tags, group, and files to copy.

The description is read from the run directory alone, so old runs can be delivered too. It contains no
secrets, since the run directory contains none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atrium.base.nested import setting
from atrium.base.recorded import read_object
from atrium.runs.method_settings import method_key
from atrium.runs.run_folder import RunFolder

_FILES = (
    "config.json",
    "method.json",
    "overrides.yaml",
    "provenance.json",
    "summary.json",
    "log.txt",
    "sweep.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """The description of a run for a tracker.

    `config` contains the settings as recorded: nested and typed. `group` identifies runs that belong
    together: runs of one sweep, or else runs that differ only in their seeds. `group_name` is its readable
    name. `started` is in seconds since 1970.
    """

    name: str
    experiment: str
    folder: Path
    config: Mapping[str, object]
    tags: Mapping[str, str]
    group: str
    group_name: str
    started: float


def describe_run(folder: RunFolder, started: float) -> RunDescription:
    """Return the description of a run; values that are missing in its run directory are left out."""
    config, _ = read_object(folder.config_file)
    provenance, _ = read_object(folder.provenance_file)
    sweep = read_object(folder.path / "sweep.json")[0].get("sweep")
    found = {
        "algorithm": setting(config, "algorithm.name"),
        "divergence": setting(config, "divergence.kind"),
        "seed": config.get("seed"),
        "commit": setting(provenance, "code.commit"),
        "command": provenance.get("command"),
        "sweep": sweep,
        "run": folder.name,
        "folder": str(folder.path.absolute()),
    }
    group, group_name = _group(config, sweep)
    return RunDescription(
        name=folder.path.name,
        experiment=folder.name.partition("/")[0],
        folder=folder.path.absolute(),
        config=config,
        tags={key: str(value) for key, value in found.items() if value is not None},
        group=group,
        group_name=group_name,
        started=started,
    )


def small_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files to copy to a remote tracker, each with its target folder ("" for the root)."""
    figures = sorted((folder / "figures").glob("*.png"))
    return [
        *((folder / name, "") for name in _FILES if (folder / name).is_file()),
        *((path, "figures") for path in figures),
    ]


def _group(config: Mapping[str, object], sweep: object) -> tuple[str, str]:
    if isinstance(sweep, str) and sweep:
        return f"sweep {sweep}", f"sweep {sweep}"
    digest = method_key(config)[:6]
    words = [setting(config, "algorithm.name"), setting(config, "divergence.kind")]
    name = " ".join(str(word) for word in dict.fromkeys(words) if word is not None)
    return f"{name} {digest}".strip(), f"{name} {digest} (seeds)".strip()
