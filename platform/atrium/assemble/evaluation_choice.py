"""Choice of the policy (a checkpoint or a model) and the settings for `atrium evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from atrium.assemble.exporting import POLICY_FOLDER, check_policy, chosen_step
from atrium.base import plugins
from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.plain_files import read_plain
from atrium.config.compose import compose, from_json, validated
from atrium.config.evaluation import (
    EvaluatedCheckpoint,
    EvaluationSettings,
    checkpoint_evaluation,
    compose_evaluation,
    stored_evaluation,
)
from atrium.models.settings import HubModelSettings
from atrium.runs.find import EVALUATED, WITH_CHECKPOINT, find_run
from atrium.runs.layout import step_of
from atrium.runs.policy_origin import read_origin
from atrium.runs.run_folder import RunFolder


def new_evaluation(
    overrides: Sequence[str], *, run: str | None, best: bool, step: int | None, runs_dir: str
) -> EvaluationSettings:
    """Return the settings to evaluate a checkpoint of `run`, or the model named in the overrides.

    `best` and `step` choose the checkpoint, by default the last one. If `model.source` is a path inside a
    run, a checkpoint of that run is evaluated, by default the one that the path names. A `runs_dir` among the
    overrides takes precedence over the argument. Raises `ConfigError` if neither a run nor a model is named,
    and for `best` or `step` without a run.
    """
    typed_dir = [line for line in overrides if line.startswith("runs_dir=")]
    if run is not None:
        runs_dir = compose(typed_dir).runs_dir if typed_dir else runs_dir
        return _of_run(find_run(runs_dir, run, last=WITH_CHECKPOINT), overrides, best=best, step=step)
    place = [] if typed_dir or runs_dir == "runs" else [f"runs_dir={runs_dir}"]
    settings = compose_evaluation([*place, *overrides])
    model = settings.config.model
    found = _place_in_run(Path(model.source).expanduser()) if isinstance(model, HubModelSettings) else None
    if found is not None:
        # A path into a run selects that run, with the prompt that its policy was trained on.
        rest = [line for line in overrides if line != "model=hub" and not line.startswith("model.source=")]
        return _of_run(found[0], rest, best=best, step=found[1] if step is None else step)
    if best or step is not None:
        raise ConfigError(
            "--best and --step require --run, since they choose among the checkpoints of a run; add --run RUN"
        )
    typed = {line.partition("=")[0] for line in overrides}
    if not any(key.partition(".")[0] in ("model", "experiment", "debug", "recipe") for key in typed):
        raise ConfigError(
            "atrium evaluate requires a model; give --run RUN (`last` is the latest run), or model=NAME, "
            "such as model=hub model.source=FOLDER, or model=tiny for the untrained built-in model"
        )
    if isinstance(model, HubModelSettings):
        return _as_trained(settings, Path(model.source).expanduser(), typed)
    return settings


def _as_trained(settings: EvaluationSettings, policy: Path, typed: Set[str]) -> EvaluationSettings:
    """Return the settings, with values replaced by those recorded with the exported policy in `policy`.

    `typed` contains the keys given on the command line, whose values are kept. If such a value differs from
    the recorded one, a note is printed.
    """
    data = settings.config.model_dump(mode="json")
    for key, value in read_origin(policy).items():
        section, _, name = key.partition(".")
        if typed.isdisjoint((key, section) if section == "evaluation" else (key,)):
            data[section][name] = value
        elif data[section][name] != value:
            given = data[section][name]
            sys.stderr.write(f"note: {key}={given}, but this policy was trained with {value}\n")
    return replace(settings, config=validated(data, trains=False))


def _of_run(
    folder: RunFolder, overrides: Sequence[str], *, best: bool, step: int | None
) -> EvaluationSettings:
    step = chosen_step(folder, best=best, step=step)
    policy = folder.checkpoint_path(step) / POLICY_FOLDER
    check_policy(policy)
    plugins.note_changes(folder.provenance_file)
    try:
        trained = from_json(read_plain(folder.config_file).decode(), trains=False)
    except ConfigError as error:
        raise RunFolderError(f"--run {folder.name} cannot be evaluated: {error}") from error
    typed_dir = [line for line in overrides if line.startswith("runs_dir=")]
    place = compose(typed_dir).runs_dir if typed_dir else str(folder.path.parent.parent)
    trained = trained.model_copy(update={"runs_dir": place})
    checkpoint = EvaluatedCheckpoint(run=folder.name, step=step, seed=trained.seed)
    return checkpoint_evaluation(trained, checkpoint, policy=policy.absolute(), overrides=overrides)


def interrupted_evaluation(wanted: str, runs_dir: str) -> tuple[EvaluationSettings, Path]:
    """Return the settings and the run directory of the evaluation to resume.

    `wanted` is the name or path of the evaluation. Raises `RunFolderError` if the evaluation's settings are
    not recorded.
    """
    folder = find_run(runs_dir, wanted, last=EVALUATED)
    if not folder.config_file.is_file():
        raise RunFolderError(
            f"{folder.path} has no config.json, so its settings are unknown; start a new evaluation"
        )
    plugins.note_changes(folder.provenance_file)
    return stored_evaluation(read_plain(folder.config_file).decode(), folder.path), folder.path


def _place_in_run(path: Path) -> tuple[RunFolder, int | None] | None:
    """Return the run that `path` belongs to and the step of its checkpoint, or None if `path` is in no run.

    `path` is a checkpoint or a folder directly inside one. It may also be the directory of a run with
    checkpoints; the step is then None.
    """
    if not path.is_dir():
        return None
    for place in (path, path.parent):
        folder = RunFolder(place.parent.parent)
        if place.parent.name == "checkpoints" and folder.looks_like_run():
            return folder, step_of(place.name)
    folder = RunFolder(path)
    return (folder, None) if folder.status_file.is_file() and folder.checkpoint_steps() else None
