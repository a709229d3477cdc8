"""Shipped methods as the experiments take them."""

from __future__ import annotations

from atrium.config.presets import read_preset
from atrium.theory.findings import named_objective


def shipped(name):
    return named_objective(name, read_preset(name).method)
