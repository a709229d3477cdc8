"""Arms (groups of runs that differ only in their seeds), and checks whether two arms use the same method.

By Theorem 4.2 of arXiv 2602.05494, a divergence that is a function of the ratio alone is equivalent to a
window [l, u]. Two arms with equal windows and otherwise equal settings are therefore one method with two
names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.base.nested import flattened_text, mapping_at
from atrium.base.plain_files import cached_while_unchanged
from atrium.base.recorded import read_object
from atrium.compare.arm_names import NamedArm, name_arms
from atrium.compare.run_settings import SEED, Settings, method_keys
from atrium.compare.trust_region import window_of_run
from atrium.method.method import SECTIONS, Method
from atrium.method.needs import Use
from atrium.method.windows import Window
from atrium.runs.find import started
from atrium.runs.method_settings import LENGTH, use_of
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, known_status

_NO_SETTING = ("algorithm.name", "algorithm.on_policy.")
"""Prefixes of settings that name or describe a method and therefore do not distinguish methods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A group of runs by seed, which differ only in their seeds and in settings that do not define arms.

    `settings` are the settings of the group's first run, and `all_settings` those of all its runs, including
    runs that `runs` leaves out because another run has the same seed, or because they started after the
    planned number of runs. Both lack the run length if it does not distinguish methods. `window` is None if
    the divergence has no constant window or if its window is unknown. `method` is None if this version of
    Atrium cannot read the method, for instance because a plugin is missing. `use` contains those properties
    of the first run that the method's parts depend on. It is None if the settings do not determine these
    properties. `recorded_key` is the method's key as recorded by the first run.
    """

    name: str
    runs: Mapping[int, RunFolder]
    settings: Settings
    window: Window | None
    all_settings: tuple[Settings, ...] = ()
    method: Method | None = None
    use: Use | None = None
    recorded_key: object = None

    @property
    def key(self) -> object:
        """The JSON value that identifies the method, or None if neither method nor recorded key is known."""
        if self.method is None:
            return self.recorded_key
        return json.loads(json.dumps(self.method.key(self.use)))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(sorted(self.runs))


def named_arms(
    folders: Sequence[RunFolder],
    by: Sequence[str] = (),
    *,
    at_last_step: bool = True,
    chosen: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> tuple[NamedArm, ...]:
    """Group all runs with a readable configuration into named arms; for the options see `name_arms`.

    Raises `ConfigError` if a key of `by` is not a setting of these runs.
    """
    settings = {folder.name: flat for folder in folders if (flat := _settings_of(folder.config_file)[0])}
    known = {key for flat in settings.values() for key in flat}
    for key in by:
        if key not in known:
            near = next((name for name in sorted(known, key=len) if name.endswith(f".{key}")), None)
            raise ConfigError(
                f"unknown setting {key} for grouping; "
                + (f"did you mean {near}?" if near else "`atrium diff` lists the settings that differ")
            )
    return name_arms(settings, by=by, at_last_step=at_last_step, chosen=chosen, renamed=renamed)


def group_runs(
    folders: Sequence[RunFolder], named: Sequence[NamedArm], *, at_last_step: bool = True
) -> tuple[list[Arm], list[str]]:
    """Return the arms that the runs in `folders` form, in the order of `named`, and a list of notes.

    `named` are the results of `named_arms` for these and possibly other runs; an arm without a run in
    `folders` is left out. Unless `at_last_step` is set (see `name_arms`), the settings of the arms do not
    include the run length. If several runs of an arm have the same seed, the latest finished run counts, or
    the latest run if none finished; a note says so. Raises `ConfigError` if a run's configuration cannot be
    read.
    """
    settings = {}
    for folder in folders:
        settings[folder.name], problem = _settings_of(folder.config_file)
        if problem:
            raise ConfigError(f"{folder.name} cannot be compared: {problem}")
    by_name = {folder.name: folder for folder in folders}
    notes: list[str] = []
    arms = []
    for one in named:
        group = [by_name[name] for name in one.runs if name in by_name]
        if not group:
            continue
        kept = [
            {key: value for key, value in settings[folder.name].items() if at_last_step or key != LENGTH}
            for folder in group
        ]
        recorded = read_object(group[0].config_file)[0]
        config, is_model = as_trained(recorded), _is_of_model(recorded)
        key = read_object(group[0].method_file)[0].get("key")
        arms.append(
            Arm(
                name=one.name,
                runs=_by_seed(group, settings, one.name, notes),
                settings=kept[0],
                all_settings=tuple(kept),
                window=None if is_model else window_of_run(group[0], config.get("divergence"))[0],
                method=Method.read(config),
                use=use_of(config),
                recorded_key=config["algorithm"] if is_model else key,
            )
        )
    return arms, notes


def are_same_method(one: Arm, other: Arm) -> bool:
    """Return whether two arms use the same method, possibly under two names, and agree in all other settings.

    If a method is unknown because a part of it is not installed, the keys that the runs recorded are
    compared. If there are no recorded keys either, the settings are compared.
    """
    keys = method_keys([one.settings, other.settings], at_last_step=True)
    outside = [key for key in keys if key.partition(".")[0] not in SECTIONS]
    if one.method is not None and other.method is not None:
        return not outside and one.method.same_as(other.method, one.use)
    if one.key is not None and other.key is not None:
        return not outside and one.key == other.key
    return all(key.startswith(_NO_SETTING) for key in keys)


def same_method_groups(arms: Sequence[Arm]) -> tuple[tuple[str, ...], ...]:
    """Return groups of two or more arms that use the same method, by name."""
    groups = [tuple(two.name for two in arms if one is two or are_same_method(one, two)) for one in arms]
    return tuple(dict.fromkeys(group for group in groups if len(group) > 1))


def as_trained(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the settings that a run, or the checkpoint that an evaluation evaluated, was trained with.

    For an evaluation of a checkpoint, settings that the evaluation itself used have the evaluation's values.
    The path of the checkpoint's weights is left out because it differs between seeds. An evaluation of a
    model that no run trained has no training settings, only its own; the name of the model then replaces that
    of an algorithm.
    """
    unread = config.get("not_read")
    if config.get("kind") != "evaluation" or not isinstance(unread, Mapping):
        return config
    settings = {key: value for key, value in config.items() if key not in ("kind", "checkpoint", "not_read")}
    model = dict(mapping_at(config, "model"))
    if not _is_of_model(config):
        model.pop("source", None)
        return {**unread, **settings, "model": model}
    name = Path(str(model.get("source", model.get("kind")))).name
    return {**settings, "algorithm": {"name": name}, "seed": unread.get("seed"), "label": unread.get("label")}


def _is_of_model(config: Mapping[str, object]) -> bool:
    return config.get("kind") == "evaluation" and config.get("checkpoint") is None


@cached_while_unchanged(4096)
def _settings_of(path: Path) -> tuple[Settings, str | None]:
    """Return the settings in a run's config.json as text by dotted key, and an error message.

    The settings are those of `as_trained`. The message says why the file cannot be read, and is None if it
    can.
    """
    config, problem = read_object(path)
    # Interning saves memory, since runs share most keys and values.
    return {sys.intern(k): sys.intern(v) for k, v in flattened_text(as_trained(config)).items()}, problem


def _by_seed(
    group: Sequence[RunFolder],
    settings: Mapping[str, Mapping[str, str]],
    name: str,
    notes: list[str],
) -> dict[int, RunFolder]:
    runs: dict[int, RunFolder] = {}
    for folder in sorted(group, key=lambda folder: (is_finished(folder), started(folder))):
        text = settings[folder.name].get(SEED, "")
        seed = int(text) if text.lstrip("-").isdecimal() else 0
        if seed in runs:
            notes.append(f"{name}, seed {seed}: {folder.name} counts instead of {runs[seed].name}")
        runs[seed] = folder
    return runs


def is_finished(folder: RunFolder) -> bool:
    """Return whether the run reached its last step."""
    return known_status(folder.status_file).state == RunState.FINISHED
