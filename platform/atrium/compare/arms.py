"""Runs grouped into arms: one arm per setting of everything but the seed, and which arms are one method.

By Theorem 4.2 of arXiv 2602.05494 a divergence that is a function of the ratio alone is a window [l, u];
arms that are equal in the rest and have equal windows are the same method under two names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from atrium.base.errors import ConfigError
from atrium.base.nested import flattened_text
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
"""What a method is called, and what is said of it, tells no methods apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Runs that differ in their seeds alone, by seed; `window` is None where the divergence has none.

    `settings` are those of the first run, `all_settings` those of every run; they lack the runs' length where
    it tells no methods apart. `method` is None where a part of it is unknown here, and `use` where the
    settings do not say what the runs did with it. `recorded_key` is what the run recorded of its method.
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
        """What tells methods apart, as JSON; None where neither a plugin nor the run's record says it."""
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
    """The arms that runs form and their names (`name_arms`), counted or not; unreadable runs are left out.

    Raises `ConfigError` where a key of `by` is no setting of these runs.
    """
    configs = {folder.name: as_trained(read_object(folder.config_file)[0]) for folder in folders}
    settings = {name: flat for name, config in configs.items() if (flat := flattened_text(config))}
    known = {key for flat in settings.values() for key in flat}
    for key in by:
        if key not in known:
            raise ConfigError(
                f"grouped by {key}: the runs have no such setting; `atrium diff` lists where they differ"
            )
    return name_arms(settings, by=by, at_last_step=at_last_step, chosen=chosen, renamed=renamed)


def group_runs(
    folders: Sequence[RunFolder],
    by: Sequence[str] = (),
    *,
    at_last_step: bool = True,
    named: Sequence[NamedArm] | None = None,
) -> tuple[list[Arm], list[str]]:
    """Group runs by the settings given, or by all that tell methods apart; by `named` where names are given.

    Returns the arms in the order of their first runs, the other runs (`arm_names`) among them, and notes.
    Runs of unequal length are other arms where each is taken `at_last_step`, and not at an equal cost.
    Of several runs of one arm with one seed the latest finished one counts, or the latest where none
    finished, which is noted. Raises `ConfigError` where a key of `by` is no setting of these runs, or a run's
    configuration cannot be read.
    """
    configs = {folder.name: _config_of(folder) for folder in folders}
    settings = {name: flattened_text(config) for name, config in configs.items()}
    if named is None:
        named = named_arms(folders, by, at_last_step=at_last_step)
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
        config = configs[group[0].name]
        arms.append(
            Arm(
                name=one.name,
                runs=_by_seed(group, settings, one.name, notes),
                settings=kept[0],
                all_settings=tuple(kept),
                window=window_of_run(group[0], config.get("divergence"))[0],
                method=Method.read(config),
                use=use_of(config),
                recorded_key=read_object(group[0].method_file)[0].get("key"),
            )
        )
    return arms, notes


def are_same_method(one: Arm, other: Arm) -> bool:
    """Whether two arms are one method; by the text of their settings where a part is unknown here."""
    keys = method_keys([one.settings, other.settings], at_last_step=True)
    outside = [key for key in keys if key.partition(".")[0] not in SECTIONS]
    if one.method is not None and other.method is not None:
        return not outside and one.method.same_as(other.method, one.use)
    if one.key is not None and other.key is not None:
        return not outside and one.key == other.key
    return all(key.startswith(_NO_SETTING) for key in keys)


def as_trained(config: Mapping[str, object]) -> Mapping[str, object]:
    """The settings of a run; of an evaluated checkpoint, those it was trained with.

    The place of its weights is left out, which would tell every seed from every other.
    """
    unread, model = config.get("not_read"), config.get("model")
    if config.get("kind") != "evaluation" or not isinstance(unread, Mapping):
        return config
    settings = {key: value for key, value in config.items() if key not in ("kind", "checkpoint", "not_read")}
    if config.get("checkpoint") is not None and isinstance(model, Mapping):
        settings["model"] = {key: value for key, value in model.items() if key != "source"}
    return {**unread, **settings}


def _config_of(folder: RunFolder) -> Mapping[str, object]:
    config, problem = read_object(folder.config_file)
    if problem:
        raise ConfigError(f"{folder.name} cannot be compared: {problem}")
    return as_trained(config)


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
            notes.append(f"{name}, seed {seed}: {folder.name} counts, not {runs[seed].name}")
        runs[seed] = folder
    return runs


def is_finished(folder: RunFolder) -> bool:
    """Whether the run reached its last step."""
    return known_status(folder.status_file).state == RunState.FINISHED
