"""GPU models of this machine as reported by the NVIDIA driver, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")
_MODEL, _NUMBER = "Model:", "Device Minor:"


def gpu_models(visible: Sequence[str]) -> list[str]:
    """Return the models of the GPUs with the device numbers `visible`, in this order.

    GPUs that the driver does not report are left out.
    """
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
