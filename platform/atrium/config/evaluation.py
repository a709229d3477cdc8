"""The configuration of `atrium evaluate`: the parts of a run's configuration that an evaluation reads.

It is composed and validated like a run's configuration. Settings that only training reads are refused by
name, because they would have no effect. The record stores them separately, so that an evaluation can be
resumed from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.nested import flattened
from atrium.config.compose import check_overrides, compose, validated
from atrium.config.compute import ONE_PROCESS, check_alone
from atrium.config.earlier import upgraded
from atrium.config.files import conf_folder, options_of
from atrium.config.nearest import shown
from atrium.config.schema import RunConfig
from atrium.models.settings import HubModelSettings

EXPERIMENT = "evaluations"
"""Folder below runs_dir for evaluations, unless experiment_name is set."""

HUB_SAMPLING = "literature"
"""Default option of the group `evaluation`, whose length limit applies to models from the Hub."""

SECTIONS = (
    "experiment_name",
    "runs_dir",
    "model",
    "dataset",
    "benchmark",
    "grader",
    "rollout",
    "evaluation",
    "tracking",
    "compute",
)
"""Sections that an evaluation reads: of rollout only the engine, of dataset only held-out test problems."""

ONLY_TRAINING_READS = (
    *("num_prompts", "group_size", "temperature", "lag", "sampling_stream", "max_mismatch"),
    "weight_transfer",
)
"""Settings of `rollout` that only training reads: the number and sampling of rollouts."""
_OF_TRAINING = frozenset(f"rollout.{name}" for name in ONLY_TRAINING_READS)

_OF_ASKING = ("model.prompt", "model.thinking", "model.date")
_KIND = "evaluation"
_UNREAD = "not_read"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """The run and step of the evaluated policy.

    `seed` is the run's seed, which keys the sampling of answers; None in older records.
    """

    run: str
    step: int
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """The subject and method of an evaluation: `config`, restricted to the parts in `SECTIONS`."""

    config: RunConfig
    checkpoint: EvaluatedCheckpoint | None = None

    @property
    def step(self) -> int:
        """The training step of the policy; 0 if no Atrium run trained it."""
        return 0 if self.checkpoint is None else self.checkpoint.step

    @property
    def run_seed(self) -> int | None:
        """The run's seed for a policy trained by a run; it keys the draws together with `evaluation.seed`."""
        return self.checkpoint.seed if self.checkpoint is not None and self.step > 0 else None

    def as_record(self) -> dict[str, object]:
        """Return the content of an evaluation's `config.json`."""
        data = self.config.model_dump(mode="json")
        return {
            "kind": _KIND,
            "checkpoint": None if self.checkpoint is None else asdict(self.checkpoint),
            **{key: data[key] for key in SECTIONS},
            _UNREAD: {key: value for key, value in data.items() if key not in SECTIONS},
        }


def compose_evaluation(overrides: Sequence[str]) -> EvaluationSettings:
    """Compose the evaluation from the shipped files and `overrides`.

    Raises `ConfigError` for settings without effect.
    """
    parsed = _checked(overrides)
    lines = [f"experiment_name={EXPERIMENT}", *overrides]
    config = compose(lines, trains=False)
    _check_effect(config, parsed)
    is_chosen = any(override.key_or_group == "evaluation" for override in parsed)
    if isinstance(config.model, HubModelSettings) and not is_chosen:
        # The literature's length limit, and the sampling settings of the model's authors, from its recipe.
        own = config.evaluation
        sampling = [f"evaluation.temperature={own.temperature}", f"evaluation.top_p={own.top_p}"]
        config = compose([f"evaluation={HUB_SAMPLING}", *sampling, *lines], trains=False)
    _check_engine(config)
    check_alone(config.compute, "an evaluation runs as one process")
    return EvaluationSettings(config=_with_own_engine(config, parsed))


def _check_effect(config: RunConfig, parsed: Sequence[Override]) -> None:
    """Raise `ConfigError` for a set of changes, such as an experiment, that an evaluation does not read."""
    for override in parsed:
        is_setting = override.key_or_group.partition(".")[0] in RunConfig.model_fields
        if is_setting or override.value() is None:
            continue
        others = [other.input_line or "" for other in parsed if other is not override]
        if _read(compose(others, trains=False)) == _read(config):
            raise ConfigError(
                f"{shown(override.input_line)}: changes only settings that training reads; remove it, or "
                f"change settings of {', '.join(SECTIONS)}"
            )


def _read(config: RunConfig) -> dict[str, object]:
    """Return the settings that an evaluation reads, by key."""
    data = config.model_dump(mode="json", include=set(SECTIONS) - {"experiment_name"})
    return {key: value for key, value in flattened(data).items() if key not in _OF_TRAINING}


def _with_own_engine(config: RunConfig, parsed: Sequence[Override]) -> RunConfig:
    """Return the configuration with the evaluation engine's settings, except for those that were typed."""
    answering = config.rollout.for_evaluation()
    assert answering is not None  # `_check_engine`
    typed = {override.key_or_group.removeprefix("rollout.") for override in parsed}
    kept = {key: value for key, value in config.rollout if key in typed}
    return config.model_copy(update={"rollout": answering.model_copy(update=kept)})


def checkpoint_evaluation(
    trained: RunConfig, checkpoint: EvaluatedCheckpoint, *, policy: Path, overrides: Sequence[str]
) -> EvaluationSettings:
    """Return the evaluation of a policy that a run trained, by default with the run's own settings.

    `trained` is the run's configuration; overrides change the settings they name.
    """
    for override in _checked(overrides):
        key = override.key_or_group
        if key.startswith("model") and key not in _OF_ASKING:
            raise ConfigError(
                f"{shown(override.input_line)}: the model is the run's checkpoint; only these settings of "
                f"it can be changed: {', '.join(_OF_ASKING)}"
            )
    answering = trained.rollout.for_evaluation()
    # The run's own model need not be a shipped one, so whether settings fit it is checked at the end.
    length = f"rollout.max_new_tokens={trained.rollout.max_new_tokens}"  # which evaluations follow
    lines = ["model=hub", "model.source=checkpoint", length, *overrides]
    if answering is not None and answering.engine in options_of(conf_folder() / "rollout"):
        lines = [f"rollout={answering.engine}", *lines]  # whose own settings may be typed
    wanted = compose(lines, trains=False).model_dump(mode="json")
    data = trained.model_dump(mode="json")
    own = {
        "source": str(policy),
        "prompt": trained.model.model_dump(mode="json")["prompt"],
        "thinking": trained.model.thinking,
        "date": trained.model.date,
    }
    data["model"] = {**wanted["model"], **own}
    data |= {"experiment_name": EXPERIMENT, "tracking": wanted["tracking"], "resume": None}
    data["compute"] |= ONE_PROCESS
    data["rollout"] = wanted["rollout"] if answering is None else answering.model_dump(mode="json")
    for override in _checked(overrides):
        _copy(wanted, data, override)
    config = validated(data, trains=False)
    _check_engine(config)
    check_alone(config.compute, "an evaluation runs as one process")
    return EvaluationSettings(config=config, checkpoint=checkpoint)


def stored_evaluation(text: str, folder: Path) -> EvaluationSettings:
    """Return the settings written by `as_record`, for the folder they are in now.

    Raises `RunFolderError` if the text is not such a record.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{folder}: config.json is not valid JSON: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise RunFolderError(
            f"{folder} is not an evaluation; `atrium evaluate --run` evaluates a run's checkpoint, and "
            "`atrium train --resume` continues a run"
        )
    checkpoint = data.get("checkpoint")
    sections = {key: data.get(key) for key in SECTIONS}
    data = {**data.get(_UNREAD, {}), **sections, "runs_dir": str(folder.parents[1])}
    config = validated(upgraded(data), trains=False)
    return EvaluationSettings(
        config=config, checkpoint=None if checkpoint is None else EvaluatedCheckpoint(**checkpoint)
    )


def _check_engine(config: RunConfig) -> None:
    if config.rollout.for_evaluation() is None:
        raise ConfigError(
            f"rollout.engine={config.rollout.engine}: stored rollouts cannot answer a benchmark; use "
            "rollout=transformers, or another engine that samples"
        )


def _checked(overrides: Sequence[str]) -> list[Override]:
    """Return the checked overrides; raise `ConfigError` for one that only training reads."""
    parsed = check_overrides(overrides)
    for override in parsed:
        first = override.key_or_group.partition(".")[0]
        is_read = first in SECTIONS and override.key_or_group not in _OF_TRAINING
        if is_read or first not in RunConfig.model_fields:
            continue
        hint = "; evaluation.seed is the random seed of the answers" if first == "seed" else ""
        raise ConfigError(
            f"{shown(override.input_line)}: has no effect on an evaluation{hint}; only settings of these "
            f"sections can be changed: {', '.join(SECTIONS)}"
        )
    return parsed


def _copy(source: Mapping[str, Any], target: dict[str, Any], override: Override) -> None:
    """Copy the setting that the override names from `source` to `target`."""
    *path, last = override.key_or_group.split(".")
    if not path and last not in SECTIONS:
        raise ConfigError(
            f"{shown(override.input_line)}: a set of settings would change the run's own; only these "
            f"sections and their settings can be changed: {', '.join(SECTIONS)}"
        )
    for part in path:
        source, target = source[part], target[part]
    target[last] = source[last]
