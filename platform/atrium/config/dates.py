"""The current date in a run's chat templates: the same for all processes and sessions of a run."""

from __future__ import annotations

from datetime import UTC, datetime

from atrium.config.schema import RunConfig


def dated(config: RunConfig, started: float) -> RunConfig:
    """Return the configuration with `model.date`: its own, or the day (UTC) of `started` (s since 1970)."""
    if config.model.date is not None:
        return config
    day = datetime.fromtimestamp(started, UTC).date().isoformat()
    return config.model_copy(update={"model": config.model.model_copy(update={"date": day})})
