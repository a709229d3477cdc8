"""Runs grouped into arms: one arm per setting of everything but the seed, and which arms are one method.

By Theorem 4.2 of arXiv 2602.05494 a divergence that is a function of the ratio alone is a window [l, u];
arms that are equal in the rest and have equal windows are the same method under two names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atrium.compare.run_settings import ABSENT, SEED, labels, method_keys
from atrium.compare.trust_region import window_in_use
from atrium.errors import ConfigError
from atrium.method.method import SECTIONS, Method
from atrium.method.needs import Use
from atrium.nested import flattened_text
from atrium.tracking.find import started
from atrium.tracking.method_settings import LENGTH, use_of
from atrium.tracking.recorded import read_object
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.status import RunState, StatusUnreadableError, read_status
from atrium.windows import Window

_SAYS_MOST = ("algorithm.name", "divergence.kind", "divergence.delta", "regularizer.kl.kind", "model.kind")
"""The settings that name an arm first, where they suffice to tell arms apart."""
_NO_SETTING = ("algorithm.name", "algorithm.on_policy.")
"""What a method is called, and what is said of it, tells no methods apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Runs that differ in their seeds alone, by seed; `window` is None where the divergence has none.

    `settings` lack the runs' length where it tells no methods apart. `method` is None where a part of it is
    unknown here, and `use` where the settings do not say what the runs did with it.
    """

    name: str
    runs: Mapping[int, RunFolder]
    settings: Mapping[str, str]
    window: Window | None
    method: Method | None = None
    use: Use | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(sorted(self.runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """All arms, in the order in which their runs were given; the keys in which they differ; and notes."""

    arms: tuple[Arm, ...]
    keys: tuple[str, ...]
    notes: tuple[str, ...]


def group_runs(folders: Sequence[RunFolder], by: Sequence[str] = (), *, at_last_step: bool = True) -> Arms:
    """Group runs by the settings given, or by all that tell methods apart.

    Runs of unequal length are other arms where each is taken `at_last_step`, and not at an equal cost.
    Of several runs of one arm with one seed the latest finished one counts, or the latest where none
    finished, which is noted. Raises `ConfigError` where a key of `by` is no setting of these runs, or a run's
    configuration cannot be read.
    """
    configs, settings = _read(folders)
    keys = list(by) or method_keys(list(settings.values()), at_last_step=at_last_step)
    known = {key for flat in settings.values() for key in flat}
    for key in by:
        if key not in known:
            raise ConfigError(
                f"grouped by {key}: the runs have no such setting; `atrium diff` lists where they differ"
            )
    members: dict[tuple[str, ...], list[RunFolder]] = {}
    for folder in folders:
        values = tuple(settings[folder.name].get(key, ABSENT) for key in keys)
        members.setdefault(values, []).append(folder)
    names = _names(keys, list(members))
    notes: list[str] = []
    arms = []
    for values, group in members.items():
        runs = _by_seed(group, settings, names[values], notes)
        first = group[0].name
        config = configs[first]
        kept = {key: value for key, value in settings[first].items() if at_last_step or key != LENGTH}
        arms.append(
            Arm(
                name=names[values],
                runs=runs,
                settings=kept,
                window=window_in_use(config.get("divergence"))[0],
                method=Method.read(config),
                use=use_of(config),
            )
        )
    return Arms(arms=tuple(arms), keys=tuple(keys), notes=tuple(notes))


def are_same_method(one: Arm, other: Arm) -> bool:
    """Whether two arms are one method; by the text of their settings where a part is unknown here."""
    keys = method_keys([one.settings, other.settings], at_last_step=True)
    if one.method is None or other.method is None:
        return all(key.startswith(_NO_SETTING) for key in keys)
    outside = [key for key in keys if key.partition(".")[0] not in SECTIONS]
    return not outside and one.method.same_as(other.method, one.use)


def pair_seeds(one: Arm, other: Arm) -> tuple[list[tuple[int, int]], str | None]:
    """The seeds of two arms in pairs, and a note where they could not all be paired by number.

    Without a common seed they are paired in their order: what is said then still holds, but pairing gains
    nothing from seeds.
    """
    common = sorted(set(one.runs) & set(other.runs))
    if common:
        left = len(one.runs) + len(other.runs) - 2 * len(common)
        seeds = "1 seed" if left == 1 else f"{left} seeds"
        note = f"left out: {seeds} of only one of {one.name} and {other.name}" if left else None
        return [(seed, seed) for seed in common], note
    pairs = list(zip(one.seeds, other.seeds, strict=False))
    return pairs, f"{one.name} and {other.name} have no seed in common; their seeds are paired in order"


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


def _read(
    folders: Sequence[RunFolder],
) -> tuple[dict[str, Mapping[str, object]], dict[str, Mapping[str, str]]]:
    configs: dict[str, Mapping[str, object]] = {}
    for folder in folders:
        configs[folder.name], problem = read_object(folder.config_file)
        if problem:
            raise ConfigError(f"{folder.name} cannot be compared: {problem}")
        configs[folder.name] = as_trained(configs[folder.name])
    return configs, {name: flattened_text(config) for name, config in configs.items()}


def _by_seed(
    group: Sequence[RunFolder],
    settings: Mapping[str, Mapping[str, str]],
    name: str,
    notes: list[str],
) -> dict[int, RunFolder]:
    runs: dict[int, RunFolder] = {}
    for folder in sorted(group, key=lambda folder: (_is_finished(folder), started(folder))):
        text = settings[folder.name].get(SEED, "")
        seed = int(text) if text.lstrip("-").isdecimal() else 0
        if seed in runs:
            notes.append(f"{name}, seed {seed}: {folder.name} counts, not {runs[seed].name}")
        runs[seed] = folder
    return runs


def _is_finished(folder: RunFolder) -> bool:
    try:
        return read_status(folder.status_file).state == RunState.FINISHED
    except StatusUnreadableError:
        return False


def _names(keys: Sequence[str], groups: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A short name for each group: only as many settings, the telling ones first, as tell all apart."""
    first = [key for key in _SAYS_MOST if key in keys]
    ordered = [*first, *(key for key in keys if key not in first)]
    chosen: list[str] = []
    best = 1
    for key in ordered:
        places = [keys.index(name) for name in [*chosen, key]]
        num_apart = len({tuple(values[place] for place in places) for values in groups})
        if num_apart > best:
            chosen, best = [*chosen, key], num_apart
    told = {values: tuple(values[keys.index(key)] for key in chosen) for values in groups}
    names = labels(chosen, told.values())
    return {values: names[own] for values, own in told.items()}
