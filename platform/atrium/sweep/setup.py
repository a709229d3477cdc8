"""Beginning a sweep, or going on with one: its files, its studies, its plan."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna

from atrium.base import plugins
from atrium.base.atomic import explained, write_json
from atrium.base.errors import ConfigError, SweepError
from atrium.base.recorded import read_object
from atrium.sweep.claims import Claims, this_worker
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.files import validated_definition
from atrium.sweep.plan import PlannedTrial, Stage, plan_stage, trial_config
from atrium.sweep.snapshot import (
    DEFINITION_FILE,
    STATE_FILE,
    public_definition,
    snapshot,
    sweep_folder,
    write_state,
)
from atrium.sweep.storage import SweepStorage, storage_url, without_password
from atrium.sweep.study import DEFINITION, SweepStudies, stages_of

CREATED, PLUGINS = "created", "plugins"
PREDICTED_AT = "predictions_commit"
"""The commit that held the predictions as they were when the sweep began; None where none did."""
STORAGE_VARIABLE, PARENT_VARIABLE = "ATRIUM_SWEEP_STORAGE", "ATRIUM_SWEEP_PARENT"
"""How a command hands its workers what no list of processes should show, and whom they belong to."""
_MAY_CHANGE = ("trials", "max_attempts", "tiny", "labels")


def prepare(storage: SweepStorage, definition: SweepDefinition, *, predicted_at: str | None = None) -> None:
    """Make the sweep's folder, studies and trials, or find them; nothing runs yet.

    `predicted_at` is the commit that holds the predictions now: what counts is what was so at the beginning.
    Raises `ConfigError` where a sweep of this name has other settings, or its space cannot be run.
    """
    check_plugins(storage, definition.name)
    with storage.explained():
        begun = stored_definition(storage, definition.name)
        if begun is not None:
            _check_same(begun[0], definition)
        # Planned before anything is stored, so that a sweep that cannot run leaves nothing behind.
        planned = {} if _is_planned(storage, begun, definition) else _plans(definition)
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
                        f"trials={definition.trials}: sweep {definition.name} has compared its winner; a "
                        "larger search needs another name, and fresh seeds for its comparison"
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
                **public_definition(definition, without_password(storage.url), created),
                PREDICTED_AT: study.user_attrs.get(PREDICTED_AT),
            },
        )


def _plans(definition: SweepDefinition) -> dict[Stage, list[tuple[PlannedTrial, tuple[int, ...]]]]:
    return {
        stage: [(trial, definition.seeds) for trial in plan_stage(definition, stage)]
        for stage in stages_of(definition)
        if stage is not Stage.FINAL
    }


def _is_planned(
    storage: SweepStorage, begun: tuple[SweepDefinition, float] | None, definition: SweepDefinition
) -> bool:
    """Whether all trials of this very definition are there already."""
    if begun is None or begun[0].trials != definition.trials:
        return False
    studies = open_studies(storage, definition)
    return all(studies.num_planned(stage) is not None for stage in studies.stages if stage is not Stage.FINAL)


def open_studies(storage: SweepStorage, definition: SweepDefinition) -> SweepStudies:
    """The studies of a definition; composes its base to learn how long a run is."""
    config = trial_config(
        definition.base, name=definition.name, runs_dir=definition.runs_dir, seed=definition.seeds[0]
    )
    return SweepStudies(storage, definition, config.num_steps)


def stored_definition(storage: SweepStorage, name: str) -> tuple[SweepDefinition, float] | None:
    """The definition that a storage holds under a name and when it was made, or None."""
    attributes = _attributes(storage, name)
    data = attributes.get(DEFINITION)
    if not isinstance(data, Mapping):
        return None
    return validated_definition(data, source=f"the stored sweep {name}"), float(attributes.get(CREATED, 0.0))


def check_plugins(storage: SweepStorage, name: str) -> None:
    """Raise `ConfigError` where this process has other plugins than those that the sweep began with."""
    with storage.explained():
        attributes = _attributes(storage, name)
    if PLUGINS not in attributes:
        return
    if lines := plugins.changes(attributes[PLUGINS]):
        raise ConfigError(f"sweep {name}: {lines[0]}; a sweep keeps the code that it began with")


def _attributes(storage: SweepStorage, name: str) -> Mapping[str, Any]:
    """What is stored beside a sweep's trials; nothing where there is no such sweep."""
    if name not in optuna.get_all_study_names(storage.optuna):
        return {}
    attributes: Mapping[str, Any] = optuna.load_study(study_name=name, storage=storage.optuna).user_attrs
    return attributes


def join(storage: SweepStorage, name: str, runs_dir: str | None) -> tuple[SweepDefinition, float]:
    """What a worker needs to join a sweep; `SweepError` where the storage does not hold it."""
    with storage.explained():
        stored = stored_definition(storage, name)
    if stored is None:
        raise SweepError(
            f"{without_password(storage.url)} holds no sweep {name}; begin it with `atrium sweep {name} "
            "storage=URL`, with the same URL"
        )
    definition, created = stored
    return (definition if runs_dir is None else definition.model_copy(update={"runs_dir": runs_dir})), created


def known_storage(runs_dir: str, name: str, wanted: str | None = None) -> str:
    """The storage URL of a sweep: as wanted, as a command tells its workers, or as the sweep's folder says.

    Raises `SweepError` where there is no such sweep.
    """
    folder = sweep_folder(runs_dir, name)
    if told := wanted or os.environ.get(STORAGE_VARIABLE):
        return storage_url(told, folder)
    content, problem = read_object(folder / DEFINITION_FILE)
    url = content.get("storage")
    if problem is not None or not isinstance(url, str):
        there = ", ".join(sweep_names(runs_dir)) or "none"
        raise SweepError(f"there is no sweep {name} in {runs_dir}: {problem}; there are: {there}")
    return url


def sweep_names(runs_dir: str) -> list[str]:
    """The sweeps that have a folder."""
    folder = sweep_folder(runs_dir, "x").parent
    return sorted(path.parent.name for path in folder.glob(f"*/{DEFINITION_FILE}")) if folder.is_dir() else []


def listed(runs_dir: str) -> list[str]:
    """A line for each sweep: how it stands, and how many trials of each stage have ended."""
    lines = []
    for name in sweep_names(runs_dir):
        state, _ = read_object(sweep_folder(runs_dir, name) / STATE_FILE)
        found = state.get("stages")
        stages = found if isinstance(found, list) else []
        counts = [f"{one['name']} {one['num_ended']} of {one['num_trials'] or '?'}" for one in stages]
        lines.append(f"{name}  {state.get('state', 'unknown')}  {', '.join(counts)}")
    return lines or [f"there are no sweeps in {runs_dir}; `atrium sweep --help` says how to make one"]


def _check_same(stored: SweepDefinition, given: SweepDefinition) -> None:
    """A sweep resumes unchanged; only more trials may be asked for, where a plan can grow."""
    before: dict[str, Any] = stored.model_dump(mode="json")
    after: dict[str, Any] = given.model_dump(mode="json")
    for key in after:
        if after[key] != before[key] and key not in (*_MAY_CHANGE, "runs_dir"):
            raise ConfigError(
                f"sweep {given.name} began with another {key}; give the settings that it began with, or "
                "another name=NAME"
            )
    if given.trials < stored.trials or (given.trials > stored.trials and given.sampler.kind == "grid"):
        raise ConfigError(
            f"trials={given.trials}: sweep {given.name} began with {stored.trials}; use "
            + ("the same, its grid is fixed" if given.sampler.kind == "grid" else f"{stored.trials} or more")
        )


def report_folder(runs_dir: str, name: str) -> Path:
    """The folder of a sweep's report."""
    return sweep_folder(runs_dir, name) / "report"
