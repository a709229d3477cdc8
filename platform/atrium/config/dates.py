"""The date in the prompts of a chat template, which is the same for all processes and sessions of a run."""

from __future__ import annotations

from datetime import UTC, datetime

from atrium.config.schema import RunConfig


def dated(config: RunConfig, started: float) -> RunConfig:
    """Return the configuration with a null `model.date` replaced by the UTC date of `started`.

    `started` is the start time of the run in Unix seconds.
    """
    if config.model.date is not None:
        return config
    day = datetime.fromtimestamp(started, UTC).date().isoformat()
    return config.model_copy(update={"model": config.model.model_copy(update={"date": day})})
