"""The configuration of `atrium evaluate`: the sections of a run's configuration that an evaluation reads.

The configuration is composed and validated like that of a run. Overrides of settings that only training reads
are errors, because they would have no effect. The evaluation's `config.json` also stores the unused sections,
separately from the others, so that the complete configuration can be restored when the evaluation is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hydra.core.override_parser.types import Override

from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.nested import flattened, put, setting
from atrium.config.compose import check_overrides, compose, validated
from atrium.config.compute import ONE_PROCESS, check_alone
from atrium.config.earlier import upgraded
from atrium.config.files import conf_folder, options_of
from atrium.config.nearest import shown
from atrium.config.schema import RunConfig
from atrium.models.settings import HubModelSettings

EXPERIMENT = "evaluations"
"""Default folder of evaluations in `runs_dir`; `experiment_name` selects another one."""

HUB_SAMPLING = "literature"
"""Default option of the group `evaluation` for models from the Hub, with the literature's length limit."""

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
"""Sections that an evaluation reads.

Of `rollout` it uses only the engine's settings, and of `dataset` only the held-out test problems.
"""

ONLY_TRAINING_READS = (
    *("num_prompts", "group_size", "temperature", "lag", "sampling_stream", "max_mismatch"),
    "weight_transfer",
)
"""Settings of `rollout` that only training reads: sampling and checks of rollouts, and weight transfer."""
_OF_TRAINING = frozenset(f"rollout.{name}" for name in ONLY_TRAINING_READS)

_OF_ASKING = ("model.prompt", "model.thinking", "model.date")
_KIND = "evaluation"
_UNREAD = "not_read"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """The run and step of the evaluated policy.

    `seed` is the run's seed, which affects the sampled answers. It is None in records of earlier versions.
    """

    run: str
    step: int
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """The settings of an evaluation.

    Only the sections of `config` that `SECTIONS` lists are used. `checkpoint` identifies the evaluated
    checkpoint of a run; it is None for any other model.
    """

    config: RunConfig
    checkpoint: EvaluatedCheckpoint | None = None

    @property
    def step(self) -> int:
        """The training step of the policy, or 0 if the policy is not a run's checkpoint."""
        return 0 if self.checkpoint is None else self.checkpoint.step

    @property
    def run_seed(self) -> int | None:
        """The seed of the run that trained the policy. Like `evaluation.seed`, it affects sampling.

        It is None for a policy that no run has trained, and if an earlier version did not record it.
        """
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
    """Compose the settings of an evaluation from the shipped files and `overrides`.

    Raises `ConfigError` for invalid settings and for overrides that have no effect on an evaluation.
    """
    parsed = _checked(overrides)
    lines = [f"experiment_name={EXPERIMENT}", *overrides]
    config = compose(lines, trains=False)
    _check_effect(config, parsed)
    is_chosen = any(override.key_or_group == "evaluation" for override in parsed)
    if isinstance(config.model, HubModelSettings) and not is_chosen:
        # Temperature and top_p are from the model's recipe; all other settings, such as the length limit,
        # are those of the literature.
        own = config.evaluation
        sampling = [f"evaluation.temperature={own.temperature}", f"evaluation.top_p={own.top_p}"]
        config = compose([f"evaluation={HUB_SAMPLING}", *sampling, *lines], trains=False)
    _check_engine(config)
    check_alone(config.compute, "an evaluation runs as one process")
    return EvaluationSettings(config=_with_own_engine(config, parsed))


def _check_effect(config: RunConfig, parsed: Sequence[Override]) -> None:
    """Raise `ConfigError` for an override that selects a file and leaves the evaluation unchanged.

    An example is `experiment=NAME` with a file that changes only settings for training. `parsed` contains the
    overrides of which `config` is composed.
    """
    for override in parsed:
        is_setting = override.key_or_group.partition(".")[0] in RunConfig.model_fields
        if is_setting or override.value() is None:
            continue
        others = [other.input_line or "" for other in parsed if other is not override]
        if _read(compose(others, trains=False)) == _read(config):
            raise ConfigError(
                f"{shown(override.input_line)} has no effect on an evaluation, since it changes only "
                f"settings for training; remove it, or change settings of {', '.join(SECTIONS)}"
            )


def _read(config: RunConfig) -> dict[str, object]:
    """Return the settings that an evaluation reads, by key."""
    data = config.model_dump(mode="json", include=set(SECTIONS) - {"experiment_name"})
    return {key: value for key, value in flattened(data).items() if key not in _OF_TRAINING}


def _with_own_engine(config: RunConfig, parsed: Sequence[Override]) -> RunConfig:
    """Return the configuration with the engine's settings for evaluations.

    Engine settings that an override in `parsed` sets keep their values.
    """
    answering = config.rollout.for_evaluation()
    assert answering is not None  # `_check_engine`
    typed = {override.key_or_group.removeprefix("rollout.") for override in parsed}
    kept = {key: value for key, value in config.rollout if key in typed}
    return config.model_copy(update={"rollout": answering.model_copy(update=kept)})


def checkpoint_evaluation(
    trained: RunConfig, checkpoint: EvaluatedCheckpoint, *, policy: Path, overrides: Sequence[str]
) -> EvaluationSettings:
    """Return the settings for an evaluation of a run's checkpoint.

    Settings without an override are those of `trained`, the run's configuration, with these exceptions: the
    experiment is `evaluations`, the evaluation runs as one process, the engine has its settings for
    evaluations (the default engine is used if the run's engine cannot sample), and the settings of `tracking`
    are the defaults. The model is loaded from the folder `policy`. Of the run's model settings, only
    `prompt`, `thinking` and `date` are kept, and only these can be changed. Raises `ConfigError` for an
    override that an evaluation does not allow.
    """
    parsed = _checked(overrides)
    for override in parsed:
        key = override.key_or_group
        if key.startswith("model") and key not in _OF_ASKING:
            raise ConfigError(
                f"{shown(override.input_line)} cannot be used, since the model is the run's checkpoint; "
                f"only these settings of the model can be changed: {', '.join(_OF_ASKING)}"
            )
        if "." not in key and key not in SECTIONS:
            raise ConfigError(
                f"{shown(override.input_line)} cannot replace the settings of the run that is evaluated; "
                f"only these sections and their settings can be changed: {', '.join(SECTIONS)}"
            )
    answering = trained.rollout.for_evaluation()
    # The overrides are composed with a placeholder model; the run's model is inserted and checked later.
    length = f"rollout.max_new_tokens={trained.rollout.max_new_tokens}"  # also the limit of evaluations
    lines = ["model=hub", "model.source=checkpoint", length, *overrides]
    if answering is not None and answering.engine in options_of(conf_folder() / "rollout"):
        lines = [f"rollout={answering.engine}", *lines]  # so that overrides may set the engine's settings
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
    for override in parsed:
        put(data, override.key_or_group, setting(wanted, override.key_or_group))
    config = validated(data, trains=False)
    _check_engine(config)
    check_alone(config.compute, "an evaluation runs as one process")
    return EvaluationSettings(config=config, checkpoint=checkpoint)


def stored_evaluation(text: str, folder: Path) -> EvaluationSettings:
    """Return the settings of an evaluation from the text of its `config.json`.

    `folder` is the current location of the evaluation and determines `runs_dir`. Raises `RunFolderError` if
    the text does not belong to an evaluation, and `ConfigError` if its settings are invalid.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{folder}: config.json is not valid JSON: {error}; start a new evaluation"
        ) from error
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise RunFolderError(
            f"{folder} is not an evaluation; to evaluate a run's checkpoint use `atrium evaluate --run`, "
            "and to continue a run `atrium train --resume`"
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
            f"rollout.engine={config.rollout.engine} cannot answer a benchmark, since it only reads "
            "stored rollouts; use rollout=transformers, or another engine that samples"
        )


def _checked(overrides: Sequence[str]) -> list[Override]:
    """Parse and check overrides; raise `ConfigError` for a setting that an evaluation does not read."""
    parsed = check_overrides(overrides)
    for override in parsed:
        first = override.key_or_group.partition(".")[0]
        is_read = first in SECTIONS and override.key_or_group not in _OF_TRAINING
        if is_read or first not in RunConfig.model_fields:
            continue
        hint = "; evaluation.seed is the random seed of the answers" if first == "seed" else ""
        raise ConfigError(
            f"{shown(override.input_line)} has no effect on an evaluation{hint}; only settings of these "
            f"sections can be changed: {', '.join(SECTIONS)}"
        )
    return parsed
