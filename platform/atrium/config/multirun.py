"""The jobs of a multirun: one for each combination of the overrides' values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from atrium.config.compose import check_overrides, compose
from atrium.config.schema import RunConfig


def compose_all(overrides: Sequence[str]) -> list[tuple[tuple[str, ...], RunConfig]]:
    """Return the jobs of a `--multirun` in Hydra's order, each as its overrides and its configuration."""
    return [(job, compose(job)) for job in jobs(check_overrides(overrides, allow_sweeps=True))]


def jobs(overrides: Sequence[Override]) -> list[tuple[str, ...]]:
    """Return the overrides of each job: all combinations of the values. The last override varies fastest."""
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_sweep_override():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            values[key] = [override.input_line or ""]
    return list(itertools.product(*values.values()))
