"""The kinds of GPU in a machine, as its driver reports them, without loading torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")
_MODEL, _NUMBER = "Model:", "Device Minor:"


def gpu_models(visible: Sequence[str]) -> list[str]:
    """Return the model of each visible GPU that the driver knows by number; empty if it reports none."""
    models: dict[str, str] = {}
    for path in sorted(_DRIVER.glob("*/information")):
        try:
            lines = [line.partition(":") for line in path.read_text(encoding="utf-8").splitlines()]
        except OSError:
            continue
        said = {f"{key.strip()}:": value.strip() for key, _, value in lines}
        if _MODEL in said and _NUMBER in said:
            models[said[_NUMBER]] = said[_MODEL]
    return [models[number] for number in visible if number in models]
