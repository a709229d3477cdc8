"""Shipped methods as the experiments take them."""

from __future__ import annotations

from atrium.config.presets import read_preset
from atrium.method.objective import Objective


def shipped(name):
    return Objective(read_preset(name).method)
