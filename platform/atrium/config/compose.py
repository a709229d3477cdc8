"""Composition of YAML files and command-line overrides into a validated `RunConfig`, with Hydra.

Every failure is a `ConfigError` with a one-line message. A configuration cannot run code: settings that name
code are errors, and Hydra's own settings (the node `hydra`) must have the values that Atrium requires.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import hydra
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from atrium.base.errors import ConfigError
from atrium.config.consistency import check_consistency
from atrium.config.earlier import upgraded
from atrium.config.files import CONFIG_NAME, LOCAL, check_method_name, conf_folder, parse_yaml, read_groups
from atrium.config.machine import Machine, engine_choice, resolve_auto, this_machine
from atrium.config.messages import validate
from atrium.config.nearest import shown
from atrium.config.new_kinds import stale_keys, typed_kinds
from atrium.config.overrides import (
    FORBIDDEN_KEY,
    NO_CALLS,
    calls_something,
    for_hydra,
    is_null_group,
    parse_overrides,
)
from atrium.config.own_files import expand_files
from atrium.config.scale import check_scale, choose_by_model, scale_notes
from atrium.config.schema import RunConfig
from atrium.engines.settings import EngineSettings

HYDRA_VERSION_BASE = "1.3"

_OVERRIDE_BELOW = re.compile(r"In '(algorithm/[\w-]+)': Could not override '(\w+)@algorithm\.")
_NO_RECIPE = re.compile(r"Could not find 'recipe/([\w-]+)'")
_NO_DEFAULT = re.compile(r"In '([\w/-]+)': Could not (?:find|load) '([\w/-]+)'")
_NO_LOGGING = {"version": 1, "root": None, "disable_existing_loggers": False}
_CORE_PLUGINS = "hydra._internal.core_plugins"
_FIXED_HYDRA: Mapping[str, Any] = {
    "callbacks": {},
    "searchpath": [],
    "run.dir": ".",
    "sweep.dir": "${runs_dir}/.cache/multirun/${now:%Y-%m-%dT%H-%M-%S}",
    "sweep.subdir": ".",
    "output_subdir": None,
    "launcher": {FORBIDDEN_KEY: f"{_CORE_PLUGINS}.basic_launcher.BasicLauncher"},
    "sweeper": {
        FORBIDDEN_KEY: f"{_CORE_PLUGINS}.basic_sweeper.BasicSweeper",
        "max_batch_size": None,
        "params": None,
    },
    "hydra_logging": _NO_LOGGING,
    "job_logging": _NO_LOGGING,
    "job.env_copy": [],
    "job.env_set": {},
}
"""Required values in the node `hydra`, so that no file makes Hydra run code or write outside `runs_dir`."""


def compose(
    overrides: Sequence[str] = (), *, machine: Machine | None = None, trains: bool = True
) -> RunConfig:
    """Return the configuration composed of the shipped files and `overrides`, validated and resolved.

    Settings given as `auto` are resolved for `machine`, by default this machine. An override may select a
    user's file by its path (`GROUP=PATH.yaml`). For `trains`, see `validated`. Raises `ConfigError` for
    the first error.
    """
    checked = check_overrides(overrides)
    config = config_from_hydra(_compose(overrides), machine=machine, trains=trains)
    check_scale(config, checked)
    return config


def compose_notes(config: RunConfig, overrides: Sequence[str]) -> list[str]:
    """Return notes for the user about `config`, the result of `compose(overrides)`. Each is one line."""
    return scale_notes(config, check_overrides(overrides), conf_folder())


def leaves_engine_open(overrides: Sequence[str]) -> bool:
    """Return whether `rollout.engine` is still `auto` after the files and overrides are composed."""
    return bool(OmegaConf.select(_compose(overrides), "rollout.engine") == "auto")


def check_overrides(lines: Sequence[str], *, allow_sweeps: bool = False) -> list[Override]:
    """Parse overrides and run the checks that need no composition.

    `allow_sweeps` allows several values per key, as in a multirun. Raises `ConfigError` for a wrong
    override.
    """
    groups = read_groups(conf_folder())
    return parse_overrides(expand_files(lines, groups), groups, allow_sweeps=allow_sweeps)


def with_files(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each of the user's own files replaced by the settings that it contains.

    A run records its arguments in this form.
    """
    return expand_files(arguments, read_groups(conf_folder()))


def composed_text(
    overrides: Sequence[str], which: str = "job", package: str | None = None, *, resolve: bool = False
) -> str:
    """Return the composition of the shipped files and `overrides` as YAML. `auto` is not resolved.

    `which` is `job` for the settings of a run, `hydra` for Hydra's own settings, or `all`. `package` is
    the dotted key of the part to return; None means everything. If `resolve` is true, interpolations are
    resolved. Raises `ConfigError` for invalid overrides or an unknown `package`.
    """
    compose(overrides)  # so that mistakes give the same messages as when training
    composed = _compose(overrides)
    if resolve:  # before parts are taken, because they refer to each other
        composed = cast("DictConfig", OmegaConf.create(OmegaConf.to_container(composed, resolve=True)))
    keys = [str(key) for key in composed if which == "all" or (key == "hydra") == (which == "hydra")]
    part: Any = OmegaConf.masked_copy(composed, keys)
    heading = ""
    if package not in (None, "_global_"):
        part, heading = OmegaConf.select(part, package), f"# @package {package}\n"
    if part is None:
        raise ConfigError(
            f"--package {package}: unknown key; choose a key that `atrium train --cfg {which}` prints"
        )
    if not OmegaConf.is_config(part):
        return f"{part}\n"
    return heading + OmegaConf.to_yaml(part)


def config_from_hydra(
    composed: DictConfig, *, machine: Machine | None = None, trains: bool = True
) -> RunConfig:
    """Return the validated configuration that Hydra composed.

    The node `hydra`, if present, is checked and left out. For `machine` and `trains`, see `compose`.
    """
    raw = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(raw, dict)
    if "hydra" in raw:
        _check_hydra_node(composed)
        if method := OmegaConf.select(composed, "hydra.runtime.choices.algorithm"):
            text = (conf_folder() / "algorithm" / f"{method}.yaml").read_text(encoding="utf-8")
            check_method_name(method, parse_yaml(text))
    if "branch" in raw:
        raise ConfigError("branch cannot be set; start a branch with `--resume RUN@STEP`, which records it")
    own = OmegaConf.masked_copy(composed, [str(key) for key in raw if key != "hydra"])
    _refuse_code_in(OmegaConf.to_container(own, resolve=False))
    machine = machine or this_machine()
    return validated(_with_engine(resolve_auto(_resolved(own), machine), machine), trains=trains)


def to_json(config: RunConfig) -> str:
    """Return all settings of a configuration as JSON text. `from_json` restores them unchanged."""
    return json.dumps(config.model_dump(mode="json"), indent=2) + "\n"


def from_json(text: str, *, trains: bool = True) -> RunConfig:
    """Return the configuration in `text`, which `to_json` of this or an earlier version of Atrium wrote.

    Raises `ConfigError` for any other text. For `trains`, see `validated`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the stored configuration is not valid JSON: {error}; restore config.json"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError("the stored configuration must be a JSON object; restore config.json")
    return validated(upgraded(data), trains=trains)


def validated(data: Mapping[str, Any], *, trains: bool = True) -> RunConfig:
    """Return plain data as a validated configuration; raise `ConfigError` for the first wrong setting.

    If `trains` is false, `Method.check` is not called. A recorded method can then be read even if it fails
    a check that was added later.
    """
    config = validate(RunConfig, data)
    check_consistency(config)
    if trains:
        config.method.check(config.use)
    return config


def _hydra_lines(overrides: Sequence[str]) -> list[str]:
    """Return checked overrides in a form that Hydra accepts, with the options that follow from the model.

    If a file in `conf/model` describes `model.source`, that file is selected. Any other source selects the
    generic recipe for its size. A thinking model selects its default task.
    """
    groups = read_groups(conf_folder())
    checked = check_overrides(overrides)
    options: dict[str, str] = {}
    for choice in choose_by_model(checked, conf_folder()):
        options |= choice.options
    # Hydra does not accept null for a group. Such an override is dropped, with those that it replaces.
    last = {override.key_or_group: override for override in checked}
    kept = [
        override
        for override in checked
        if (key := override.key_or_group) not in options
        and not (is_null_group(override, groups) or is_null_group(last[key], groups))
    ]
    lines = [
        *(f"{group}={option}" for group, option in options.items()),
        *(line for override in kept for line in for_hydra(override, groups)),
    ]
    if os.environ.get("ATRIUM_NO_LOCAL") and (conf_folder() / LOCAL / "default.yaml").is_file():
        lines.append(f"~{LOCAL}@_global_")
    # Hydra cannot delete a missing key, so each key gets a value before it is deleted.
    deleted = [line for key in _left_by_typed_kinds(checked) for line in (f"++{key}=0", f"~{key}")]
    return [*lines, *deleted]


def _left_by_typed_kinds(checked: Sequence[Override]) -> list[str]:
    """Return the keys that become obsolete because an override selects a different kind for their section."""
    typed = {
        override.key_or_group: override.value()
        for override in checked
        if override.type in (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD)
    }
    if not (kinds := typed_kinds(typed)):
        return []
    others = [override.input_line or "" for override in checked if override.key_or_group not in kinds]
    before = OmegaConf.to_container(_compose(others), resolve=False)
    return stale_keys(typed, cast("dict[str, Any]", before), RunConfig)


def _compose(overrides: Sequence[str]) -> DictConfig:
    lines = _hydra_lines(overrides)  # before Hydra is initialized, because a typed kind composes twice
    try:
        with hydra.initialize_config_dir(str(conf_folder()), version_base=HYDRA_VERSION_BASE):
            composed: DictConfig = hydra.compose(CONFIG_NAME, overrides=lines, return_hydra_config=True)
            return composed
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, KeyError) as error:
        raise _composition_error(check_overrides(overrides), error) from error


def _composition_error(overrides: Sequence[Override], error: Exception) -> ConfigError:
    """Return a one-line error that names the wrong override, or quotes Hydra if the cause is unknown."""
    said = " ".join(" ".join(str(part) for part in (error, error.__cause__ or "")).split())
    for override in overrides:
        key, line = override.key_or_group, override.input_line or ""
        if override.is_add() and "Could not append" in said and f"'{key}'" in said:
            return ConfigError(f"{shown(line)}: {key} already exists, so it cannot be added; use {key}=VALUE")
        if override.is_delete() and "Could not delete" in said and f"'{key}'" in said:
            return ConfigError(f"{shown(line)}: there is no such key to delete; use {key}=null")
    if wrong := _OVERRIDE_BELOW.search(said):
        file, group = wrong.groups()
        return ConfigError(
            f"conf/{file}.yaml: `override /{group}` selects a part of the algorithm; select another part "
            f"of the run with `override /{group}@_global_.{group}: NAME`"
        )
    if missing := _NO_RECIPE.search(said):
        model = missing[1]
        return ConfigError(
            f"model={model}: conf/recipe/{model}.yaml, its training recipe, is missing; write one "
            "(defaults: [direct], or [thinking]), or choose one with recipe=NAME"
        )
    if missing := _NO_DEFAULT.search(said):
        return ConfigError(
            f"conf/{missing[1]}.yaml: defaults names {missing[2]}, but there is no conf/{missing[2]}.yaml; "
            "correct the name"
        )
    return ConfigError(f"the configuration cannot be composed: {said}")


def _check_hydra_node(composed: DictConfig) -> None:
    for key, expected in _FIXED_HYDRA.items():
        parent, _, name = f"hydra.{key}".rpartition(".")
        node = OmegaConf.select(composed, parent)
        raw = OmegaConf.to_container(node, resolve=False)
        assert isinstance(raw, dict)
        if raw.get(name) != expected:
            raise ConfigError(
                f"hydra.{key} must be {shown(expected)}, since Hydra's own settings are fixed, got "
                f"{shown(raw.get(name))}; remove it from the configuration files"
            )


def _refuse_code_in(node: object, key: str = "") -> None:
    """Raise `ConfigError` if a setting names code to run, or calls a resolver in an interpolation."""
    if isinstance(node, dict):
        for name, value in node.items():
            path = f"{key}.{name}" if key else str(name)
            if name == FORBIDDEN_KEY:
                raise ConfigError(
                    f"{path}={shown(value)}: a configuration cannot name code to run; use a kind that "
                    "Atrium ships"
                )
            _refuse_code_in(value, path)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            _refuse_code_in(value, f"{key}.{index}")
    elif isinstance(node, str) and calls_something(node):
        raise ConfigError(f"{key}={shown(node)}: {NO_CALLS}")


def _resolved(composed: DictConfig) -> dict[str, Any]:
    """Return the settings with interpolations resolved. Keys with a missing value (`???`) are left out."""
    try:
        data = OmegaConf.to_container(composed, resolve=True)
        missing = OmegaConf.missing_keys(composed)
    except OmegaConfBaseException as error:
        key = error.full_key or "a setting"
        said = " ".join(str(error.msg or error).splitlines()[:1])
        raise ConfigError(
            f"the interpolation of {key} cannot be resolved: {said}; correct the reference"
        ) from error
    assert isinstance(data, dict)
    for key in missing:
        if "[" in key:
            raise ConfigError(f"{key}: ??? is a placeholder for a missing value; give it a value")
        parent: Any = data
        *path, last = key.split(".")
        for part in path:
            parent = parent[part]
        del parent[last]
    return {str(key): value for key, value in data.items()}


def _with_engine(data: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Return the data with `rollout.engine=auto` replaced by the chosen engine and its default settings.

    The default settings are those in the engine's file in `conf/rollout`. Given settings take precedence.
    """
    rollout, model, compute = (data.get(key) for key in ("rollout", "model", "compute"))
    if not (isinstance(rollout, dict) and isinstance(model, dict) and isinstance(compute, dict)):
        return data
    if rollout.get("engine") != "auto":
        return data
    engine, _ = engine_choice(model.get("kind"), compute.get("device"), machine)
    shipped = parse_yaml((conf_folder() / "rollout" / f"{engine}.yaml").read_text(encoding="utf-8"))
    # A setting that only other engines have is dropped if it is null; otherwise validation reports it.
    known = EngineSettings.named(engine).model_fields.keys() | shipped.keys()
    known_elsewhere = {key for other in EngineSettings.values() for key in other.model_fields} - known
    given = {key: value for key, value in rollout.items() if value is not None or key not in known_elsewhere}
    return {**data, "rollout": {**shipped, **given, "engine": engine}}
