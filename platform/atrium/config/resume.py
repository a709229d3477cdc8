"""The configuration of a resumed or branched run: the stored configuration with permitted changes.

A resumed run must compute the same as an uninterrupted run. Overrides of settings that affect training are
therefore errors, unless they repeat the stored value. The exception is `num_steps`, which may also change the
learning rates of the remaining steps. A branch is a new run that starts from a step of another run. A branch
may also change optimization settings, but not the task, because the state at that step depends on the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType

from atrium.base.errors import ConfigError
from atrium.base.nested import put, setting
from atrium.config.compose import check_overrides, compose, leaves_engine_open, validated
from atrium.config.machine import AUTO_KEYS
from atrium.config.method_files import put_typed
from atrium.config.nearest import shown
from atrium.config.presets import read_settings
from atrium.config.schema import BranchConfig, RunConfig
from atrium.engines.declaration import PLACE_SETTINGS
from atrium.train.settings import OptimizerSettings, learning_rate_at

_SPLIT = ("gpu_memory_fraction", "sleep_level")
"""Settings of vLLM that `rollout=auto` chooses for the GPU when a run starts."""

MAY_CHANGE = (
    "num_steps",
    "label",
    "runs_dir",
    "tracking.figures",
    "tracking.progress",
    "compute.profile_step",
    *(f"rollout.{name}" for name in PLACE_SETTINGS),
    "compute.num_processes",
    "compute.num_nodes",
    "compute.rendezvous",
    "compute.allow_public_rendezvous",
    "compute.max_restarts",
    "compute.timeout_s",
    "compute.slurm",
)
"""Settings and sections that may change when a run is resumed.

Only `num_steps` affects training: the learning rates of the remaining steps may depend on it.
"""

_OF_RECIPE = ("every_num_steps", "num_samples", "max_new_tokens", "tests_before", "seed")
"""Settings of `evaluation` that the recipe of a model chooses, so that its files leave them out."""

BRANCH_MAY_CHANGE = (
    "experiment_name",
    *(f"optimizer.{name}" for name in OptimizerSettings.model_fields if name != "kind"),
    "divergence",
    "checkpoint",
    "evaluation",
    "tracking",
    *MAY_CHANGE,
)
"""Settings and sections in which a branch may differ from the run that it starts from."""


def branched(stored: RunConfig, folder: Path, branch: BranchConfig, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a new run that branches from a step of the run in `folder`.

    The setting `resume` is `folder`, so that the checkpoint can be checked. The caller later sets it to
    the folder of the new run. Raises `ConfigError` for overrides of settings outside `BRANCH_MAY_CHANGE`.
    """
    data = stored.model_dump(mode="json")
    for override in check_overrides(overrides):
        key = override.key_or_group
        if not any(f"{key}.".startswith(f"{name}.") for name in BRANCH_MAY_CHANGE):
            compose([override.input_line])  # reports unknown settings as such
            raise ConfigError(
                f"{shown(override.input_line)} cannot be used when a run starts from a step of another "
                f"run; only these settings can be changed: {', '.join(BRANCH_MAY_CHANGE)}"
            )
        value = override.value()
        if key == "evaluation":
            kept = {name: data[key][name] for name in _OF_RECIPE}
            value = {**kept, **read_settings(key, str(value))} if value else data[key]
        elif isinstance(data.get(key), dict):
            value = compose([override.input_line]).model_dump(mode="json")[key]
        put_typed(data, key, value)
    return validated({**data, "branch": branch.model_dump(), "resume": str(folder)})


def resumed(stored: RunConfig, folder: Path, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration that resumes the run in `folder`, whose configuration is `stored`.

    Overrides may change the settings in `MAY_CHANGE` and may repeat stored values. Any other override raises
    `ConfigError`. `runs_dir` is set to the runs directory in which `folder` is now. If `num_steps` changes,
    the remaining steps use the learning-rate schedule for the new number of steps.
    """
    parsed = check_overrides(overrides)
    data = stored.model_dump(mode="json")
    if all(_is_plain_change(override) for override in parsed):
        for override in parsed:
            put_typed(data, override.key_or_group, override.value())
        return validated({**data, "resume": str(folder), "runs_dir": str(folder.parents[1])})
    given = compose(overrides)
    wanted = given.model_dump(mode="json")
    # The run keeps the values that it found for `auto` at its start.
    for key in ("micro_batch_tokens", "recompute_activations", "packing"):
        if wanted["compute"][key] == "auto":
            wanted["compute"][key] = data["compute"][key]
    if leaves_engine_open(overrides):
        wanted["rollout"] |= {key: data["rollout"][key] for key in _SPLIT if key in data["rollout"]}
    if wanted["model"]["date"] is None:  # the day of the run's start was recorded
        wanted["model"]["date"] = data["model"]["date"]
    changed = sorted(_differing(data, wanted))
    for override in parsed:
        _refuse_change(override, changed, data)
        for name in _changeable(override.key_or_group):
            put(data, name, setting(wanted, name))
    # The current location, which differs from the original one if the runs were moved.
    return validated({**data, "resume": str(folder), "runs_dir": str(folder.parents[1])})


def schedule_note(before: RunConfig, now: RunConfig, step: int) -> str | None:
    """Return a line about the learning rate after `step` if a new `num_steps` changes its schedule, or None.

    The line states the learning rate of `step` under the configuration `before`, and that of the next step
    under the configuration `now`. Returns None if the schedule is unaffected, if `step` is 0, or if `step` is
    not below the new `num_steps`.
    """
    is_same = before.optimizer.schedule == "constant" == now.optimizer.schedule
    if is_same or before.num_steps == now.num_steps or not 0 < step < now.num_steps:
        return None
    had = learning_rate_at(step, before.optimizer, before.num_steps)
    gets = learning_rate_at(step + 1, now.optimizer, now.num_steps)
    return (
        f"optimizer.schedule={now.optimizer.schedule} ends at step {now.num_steps} instead of "
        f"{before.num_steps}: the learning rate is {gets:.3g} in step {step + 1}, after {had:.3g} in step "
        f"{step}"
    )


def _is_plain_change(override: Override) -> bool:
    """Return whether an override sets a setting in `MAY_CHANGE` to a value other than `auto` or a reference.

    Such a value can be inserted into the stored settings. Any other override must be composed first, which
    also adds the default value of every setting that the override does not set.
    """
    is_set = override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
    is_plain = is_set and "${" not in (override.input_line or "") and override.value() != "auto"
    return is_plain and _changeable(override.key_or_group) == [override.key_or_group]


def _changeable(key: str) -> list[str]:
    """Return the settings that an override of `key` may change when a run is resumed.

    `key` is a setting or a group of settings. The result is `key` alone if it is in `MAY_CHANGE` or below a
    section in `MAY_CHANGE`. Otherwise, the result contains the entries of `MAY_CHANGE` below `key`.
    """
    if any(f"{key}.".startswith(f"{name}.") for name in MAY_CHANGE):
        return [key]
    return [name for name in MAY_CHANGE if name.startswith(f"{key}.")]


def _refuse_change(override: Override, changed: Sequence[str], stored: dict[str, Any]) -> None:
    key = override.key_or_group
    fixed = [name for name in changed if not _changeable(name)]
    if key == "compute":
        # These two are derived: threads from the number of processes, and packing from the model.
        fixed = [name for name in fixed if name not in ("compute.num_threads", "compute.packing")]
    if key in stored or "." in key:
        touched = [name for name in fixed if f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.")]
        began_with = (
            f"the run began with {touched[0]}={shown(setting(stored, touched[0]))}" if touched else ""
        )
    else:
        # A group without a section of its own, such as `experiment`, may change any setting.
        touched = [name for name in fixed if name not in (*AUTO_KEYS, "resume")]
        began_with = "a resumed run keeps its settings"
    if touched:
        raise ConfigError(
            f"{shown(override.input_line)} cannot be used when a run is resumed, since {began_with}; "
            f"only these settings can be changed: {', '.join(MAY_CHANGE)}"
        )


def _differing(stored: object, wanted: object, prefix: str = "") -> list[str]:
    """Return the dotted names of the settings in which two configurations differ.

    Each name begins with `prefix`.
    """
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return [
            name
            for key in {**stored, **wanted}
            for name in _differing(stored.get(key), wanted.get(key), f"{prefix}{key}.")
        ]
    return [] if stored == wanted else [prefix.removesuffix(".")]
