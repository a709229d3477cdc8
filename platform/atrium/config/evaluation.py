"""The configuration of `atrium evaluate`: those parts of a run's configuration that an evaluation reads.

It is composed and validated as a run's is. Settings that only training reads are refused by name, because
they would have no effect; the record keeps them apart, so that an evaluation can be resumed from it.
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
"""The folder below runs_dir that evaluations are filed in, unless experiment_name says otherwise."""

HUB_SAMPLING = "literature"
"""The option of the group `evaluation` whose length limit models from the Hub have, unless one is chosen."""

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
"""What an evaluation reads: of rollout the engine, of dataset the test problems that it may hold out."""

ONLY_TRAINING_READS = (
    *("num_prompts", "group_size", "temperature", "lag", "sampling_stream", "max_mismatch"),
    "weight_transfer",
)
"""Settings of `rollout` that only training reads: how many rollouts, and how."""
_OF_TRAINING = frozenset(f"rollout.{name}" for name in ONLY_TRAINING_READS)

_OF_ASKING = ("model.prompt", "model.thinking", "model.date")
_KIND = "evaluation"
_UNREAD = "not_read"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """The run and the step that the evaluated policy comes from.

    `seed` is the run's, which keys the answers' draws; None in records from before it did.
    """

    run: str
    step: int
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What is evaluated and how: `config` in the parts that `SECTIONS` names."""

    config: RunConfig
    checkpoint: EvaluatedCheckpoint | None = None

    @property
    def step(self) -> int:
        """The training step of the policy, 0 where no run of Atrium made it."""
        return 0 if self.checkpoint is None else self.checkpoint.step

    @property
    def run_seed(self) -> int | None:
        """What keys the draws besides `evaluation.seed`: the run's seed for a policy that it has trained."""
        return self.checkpoint.seed if self.checkpoint is not None and self.step > 0 else None

    def as_record(self) -> dict[str, object]:
        """What `config.json` of an evaluation holds."""
        data = self.config.model_dump(mode="json")
        return {
            "kind": _KIND,
            "checkpoint": None if self.checkpoint is None else asdict(self.checkpoint),
            **{key: data[key] for key in SECTIONS},
            _UNREAD: {key: value for key, value in data.items() if key not in SECTIONS},
        }


def compose_evaluation(overrides: Sequence[str]) -> EvaluationSettings:
    """The evaluation that the shipped files and `overrides` give; `ConfigError` for idle settings."""
    parsed = _checked(overrides)
    lines = [f"experiment_name={EXPERIMENT}", *overrides]
    config = compose(lines, trains=False)
    _check_effect(config, parsed)
    is_chosen = any(override.key_or_group == "evaluation" for override in parsed)
    if isinstance(config.model, HubModelSettings) and not is_chosen:
        # The literature's length, and the sampling of the model's authors, which its recipe holds.
        own = config.evaluation
        sampling = [f"evaluation.temperature={own.temperature}", f"evaluation.top_p={own.top_p}"]
        config = compose([f"evaluation={HUB_SAMPLING}", *sampling, *lines], trains=False)
    _check_engine(config)
    check_alone(config.compute, "an evaluation is one process")
    return EvaluationSettings(config=_with_own_engine(config, parsed))


def _check_effect(config: RunConfig, parsed: Sequence[Override]) -> None:
    """Raise `ConfigError` for a set of differences, such as an experiment, of which nothing is read."""
    for override in parsed:
        is_setting = override.key_or_group.partition(".")[0] in RunConfig.model_fields
        if is_setting or override.value() is None:
            continue
        others = [other.input_line or "" for other in parsed if other is not override]
        if _read(compose(others, trains=False)) == _read(config):
            raise ConfigError(
                f"{shown(override.input_line)}: changes only what training reads; leave it out, allowed are "
                f"settings of {', '.join(SECTIONS)}"
            )


def _read(config: RunConfig) -> dict[str, object]:
    """The settings that an evaluation reads, by key."""
    data = config.model_dump(mode="json", include=set(SECTIONS) - {"experiment_name"})
    return {key: value for key, value in flattened(data).items() if key not in _OF_TRAINING}


def _with_own_engine(config: RunConfig, parsed: Sequence[Override]) -> RunConfig:
    """The configuration with the engine that evaluations have, but for what was typed of it."""
    answering = config.rollout.for_evaluation()
    assert answering is not None  # `_check_engine`
    typed = {override.key_or_group.removeprefix("rollout.") for override in parsed}
    kept = {key: value for key, value in config.rollout if key in typed}
    return config.model_copy(update={"rollout": answering.model_copy(update=kept)})


def checkpoint_evaluation(
    trained: RunConfig, checkpoint: EvaluatedCheckpoint, *, policy: Path, overrides: Sequence[str]
) -> EvaluationSettings:
    """The evaluation of a policy that a run trained, by default as the run itself evaluates it.

    `trained` is the run's configuration; overrides change what they name.
    """
    for override in _checked(overrides):
        key = override.key_or_group
        if key.startswith("model") and key not in _OF_ASKING:
            raise ConfigError(
                f"{shown(override.input_line)}: the model is the run's checkpoint; allowed are "
                f"{', '.join(_OF_ASKING)}"
            )
    answering = trained.rollout.for_evaluation()
    # The run's own model need not be one of the shipped ones, and what fits it is checked in the end.
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
    check_alone(config.compute, "an evaluation is one process")
    return EvaluationSettings(config=config, checkpoint=checkpoint)


def stored_evaluation(text: str, folder: Path) -> EvaluationSettings:
    """The settings that `as_record` wrote, for the folder they now lie in.

    Raises `RunFolderError` where the text is not such a record.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{folder}: config.json is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise RunFolderError(
            f"{folder} is no evaluation; `atrium evaluate --run` evaluates a run's checkpoint, and "
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
            f"rollout.engine={config.rollout.engine}: stored rollouts answer no benchmark; allowed is "
            "rollout=transformers, or another that samples"
        )


def _checked(overrides: Sequence[str]) -> list[Override]:
    """The overrides, none of which only training reads."""
    parsed = check_overrides(overrides)
    for override in parsed:
        first = override.key_or_group.partition(".")[0]
        is_read = first in SECTIONS and override.key_or_group not in _OF_TRAINING
        if is_read or first not in RunConfig.model_fields:
            continue
        hint = "; the answers' randomness starts from evaluation.seed" if first == "seed" else ""
        raise ConfigError(
            f"{shown(override.input_line)}: has no effect on an evaluation{hint}; allowed are settings of "
            f"{', '.join(SECTIONS)}"
        )
    return parsed


def _copy(source: Mapping[str, Any], target: dict[str, Any], override: Override) -> None:
    """Set in `target` what the override names, to its value in `source`."""
    *path, last = override.key_or_group.split(".")
    if not path and last not in SECTIONS:
        raise ConfigError(
            f"{shown(override.input_line)}: a set of settings would change the run's own; allowed are "
            f"{', '.join(SECTIONS)} and their settings"
        )
    for part in path:
        source, target = source[part], target[part]
    target[last] = source[last]
