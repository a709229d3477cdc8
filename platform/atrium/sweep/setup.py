"""Preparation of a new or resumed sweep: its folder, its studies and its planned trials."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import optuna

from atrium.base import plugins
from atrium.base.atomic import explained, write_json
from atrium.base.errors import ConfigError, SweepError
from atrium.base.recorded import read_object
from atrium.config.messages import validate
from atrium.sweep.claims import Claims, this_worker
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.plan import PlannedTrial, Stage, plan_stage, trial_config
from atrium.sweep.snapshot import (
    DEFINITION_FILE,
    FORMAT_VERSION,
    STATE_FILE,
    snapshot,
    sweep_folder,
    write_state,
)
from atrium.sweep.storage import SweepStorage, storage_url, without_password
from atrium.sweep.study import DEFINITION, SweepStudies, stages_of

CREATED, PLUGINS = "created", "plugins"
PREDICTED_AT = "predictions_commit"
"""The commit that contained the current predictions when the sweep started, or None if there was none."""
STORAGE_VARIABLE, PARENT_VARIABLE = "ATRIUM_SWEEP_STORAGE", "ATRIUM_SWEEP_PARENT"
"""Environment variables for workers: the storage URL, hidden from process lists, and the parent process."""
_MAY_CHANGE = ("trials", "max_attempts", "tiny", "labels")


def prepare(storage: SweepStorage, definition: SweepDefinition, *, predicted_at: str | None = None) -> None:
    """Create the sweep's folder, studies and trials, or open existing ones, without running anything.

    `predicted_at` is the commit that contains the current predictions. It is recorded only when the sweep
    starts. If the definition's `trials` is larger than before, the additional trials are created. Raises
    `ConfigError` if a sweep of this name has other settings or plugins, if the space contains an invalid
    setting, or if `trials` is increased after the comparison on fresh seeds was planned. Raises `SweepError`
    if the storage fails, and `RunFolderError` if the folder cannot be written.
    """
    check_plugins(storage, definition.name)
    with storage.explained():
        begun = stored_definition(storage, definition.name)
        if begun is not None:
            _check_same(begun[0], definition)
        # Plan before storing anything, so that an invalid sweep leaves no files behind.
        planned = {} if _has_all_trials(storage, begun, definition) else _plans(definition)
        studies = open_studies(storage, definition)
        created = begun[1] if begun is not None else time.time()
        study = studies.study(Stage.SEARCH)
        study.set_user_attr(DEFINITION, definition.model_dump(mode="json"))
        study.set_user_attr(CREATED, created)
        study.set_user_attr(PLUGINS, plugins.records())
        if begun is None:
            study.set_user_attr(PREDICTED_AT, predicted_at)
        claims = Claims(storage, definition.name, this_worker())
        claims.beat()
        for stage, trials in planned.items():
            known = studies.num_planned(stage)
            if known is None or known < len(trials):
                if Stage.FINAL in studies.stages and studies.num_planned(Stage.FINAL) is not None:
                    raise ConfigError(
                        f"trials cannot be raised to {definition.trials}, since sweep {definition.name} "
                        "has already compared its winner; use another name and new final seeds for a "
                        "larger search"
                    )
                resource = f"plan:{stage}" if known is None else f"plan:{stage}:{len(trials)}"
                if claims.acquire(resource):
                    studies.add(stage, trials)
        claims.end()
        state = snapshot(studies, claims, created)
    folder = sweep_folder(definition.runs_dir, definition.name)
    with explained("write", folder):
        write_state(folder, state)
        write_json(
            folder / DEFINITION_FILE,
            {
                "format_version": FORMAT_VERSION,
                "created": created,
                "storage": without_password(storage.url),
                "definition": definition.model_dump(mode="json"),
                PREDICTED_AT: study.user_attrs.get(PREDICTED_AT),
            },
        )


def _plans(definition: SweepDefinition) -> dict[Stage, list[tuple[PlannedTrial, tuple[int, ...]]]]:
    return {
        stage: [(trial, definition.seeds) for trial in plan_stage(definition, stage)]
        for stage in stages_of(definition)
        if stage is not Stage.FINAL
    }


def _has_all_trials(
    storage: SweepStorage, begun: tuple[SweepDefinition, float] | None, definition: SweepDefinition
) -> bool:
    """Return whether all trials of the definition already exist, except those of the final stage.

    `begun` is the stored definition with its creation time, or None for a new sweep. The caller has checked
    that the two definitions differ only in keys that may change.
    """
    if begun is None or begun[0].trials != definition.trials:
        return False
    studies = open_studies(storage, definition)
    return all(studies.num_planned(stage) is not None for stage in studies.stages if stage is not Stage.FINAL)


def open_studies(storage: SweepStorage, definition: SweepDefinition) -> SweepStudies:
    """Return the studies of a definition, which are created in the storage if they do not exist.

    This composes the base of the definition to obtain the number of steps of a run.
    """
    return SweepStudies(storage, definition, trial_config(definition, definition.base).num_steps)


def stored_definition(storage: SweepStorage, name: str) -> tuple[SweepDefinition, float] | None:
    """Return the definition stored under a name, and its creation time in Unix seconds.

    Returns None if there is no such definition.
    """
    attributes = _attributes(storage, name)
    data = attributes.get(DEFINITION)
    if not isinstance(data, Mapping):
        return None
    definition = validate(SweepDefinition, data, f"the stored sweep {name}")
    return definition, float(attributes.get(CREATED, 0.0))


def check_plugins(storage: SweepStorage, name: str) -> None:
    """Raise `ConfigError` if this process does not have the plugins with which the sweep was started."""
    with storage.explained():
        attributes = _attributes(storage, name)
    if PLUGINS not in attributes:
        return
    if lines := plugins.changes(attributes[PLUGINS]):
        raise ConfigError(f"sweep {name} must resume with the code that it started with, but {lines[0]}")


def _attributes(storage: SweepStorage, name: str) -> Mapping[str, Any]:
    """Return the attributes of a sweep's main study, which are empty if there is no such sweep."""
    if name not in optuna.get_all_study_names(storage.optuna):
        return {}
    attributes: Mapping[str, Any] = optuna.load_study(study_name=name, storage=storage.optuna).user_attrs
    return attributes


def join(storage: SweepStorage, name: str, runs_dir: str | None) -> tuple[SweepDefinition, float]:
    """Return a stored sweep's definition and creation time in Unix seconds, for an additional worker.

    If `runs_dir` is given, it replaces the one in the definition. Raises `SweepError` if there is no such
    sweep.
    """
    with storage.explained():
        stored = stored_definition(storage, name)
    if stored is None:
        raise SweepError(
            f"{without_password(storage.url)} contains no sweep {name}; start the sweep with `atrium "
            f"sweep {name} storage=URL` and the same URL"
        )
    definition, created = stored
    return (definition if runs_dir is None else definition.model_copy(update={"runs_dir": runs_dir})), created


def known_storage(runs_dir: str, name: str, wanted: str | None = None) -> str:
    """Return the storage URL of a sweep.

    This is `wanted` if given, otherwise the environment variable ATRIUM_SWEEP_STORAGE if set, otherwise the
    URL in the sweep's folder, in which a password is masked. Raises `SweepError` if the URL must be read from
    the folder but the sweep does not exist, and `ConfigError` if `wanted` or the variable is invalid.
    """
    folder = sweep_folder(runs_dir, name)
    if told := wanted or os.environ.get(STORAGE_VARIABLE):
        return storage_url(told, folder)
    content, problem = read_object(folder / DEFINITION_FILE)
    url = content.get("storage")
    if problem is not None or not isinstance(url, str):
        there = ", ".join(sweep_names(runs_dir)) or "none"
        raise SweepError(f"there is no sweep {name} in {runs_dir} ({problem}); existing sweeps: {there}")
    return url


def sweep_names(runs_dir: str) -> list[str]:
    """Return the sorted names of the sweeps in `runs_dir`."""
    folder = sweep_folder(runs_dir, "x").parent
    return sorted(path.parent.name for path in folder.glob(f"*/{DEFINITION_FILE}")) if folder.is_dir() else []


def listed(runs_dir: str) -> list[str]:
    """Return one line per sweep, with its state and the number of ended trials in each stage.

    If there are no sweeps, the only line says so.
    """
    lines = []
    for name in sweep_names(runs_dir):
        state, _ = read_object(sweep_folder(runs_dir, name) / STATE_FILE)
        found = state.get("stages")
        stages = found if isinstance(found, list) else []
        counts = [f"{one['name']} {one['num_ended']} of {one['num_trials'] or '?'}" for one in stages]
        lines.append(f"{name}  {state.get('state', 'unknown')}  {', '.join(counts)}")
    return lines or [f"there are no sweeps in {runs_dir}; `atrium sweep --help` explains how to start one"]


def _check_same(stored: SweepDefinition, given: SweepDefinition) -> None:
    """Raise `ConfigError` if a resumed sweep changes keys that are fixed after the start.

    `trials` may increase, except for a grid.
    """
    before: dict[str, Any] = stored.model_dump(mode="json")
    after: dict[str, Any] = given.model_dump(mode="json")
    for key in after:
        if after[key] != before[key] and key not in (*_MAY_CHANGE, "runs_dir"):
            raise ConfigError(
                f"{key} must keep the value that sweep {given.name} was started with; use that value, or "
                "another name=NAME"
            )
    if given.trials < stored.trials or (given.trials > stored.trials and given.sampler.kind == "grid"):
        raise ConfigError(
            f"trials={given.trials}: sweep {given.name} was started with trials={stored.trials}; use "
            + ("that number for a grid" if given.sampler.kind == "grid" else f"{stored.trials} or more")
        )
