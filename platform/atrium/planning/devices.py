"""What GPUs can compute, read and hold, as their makers state it: for shares of the peak and for plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU's maker states.

    Dense matrix products in 10^12 operations a second, memory in 10^12 bytes a second and 10^9 bytes, and the
    link to another GPU of the same machine in 10^9 bytes a second and direction.
    """

    bfloat16: float
    float32: float
    terabytes_s: float
    gigabytes: int
    link_gigabytes_s: float


def find_gpu(device_name: str) -> Gpu | None:
    """The GPU that a device's name, such as `NVIDIA H100 80GB HBM3`, speaks of; None for unknown ones.

    Longer names win, so that a `PCIe` card is not mistaken for its faster relative.
    """
    found = [name for name in GPUS if name.casefold() in device_name.casefold()]
    return GPUS[max(found, key=len)] if found else None


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Dense matrix products per second in `float32` or `bfloat16`; None for unknown devices."""
    gpu = find_gpu(device_name)
    return None if gpu is None else (gpu.float32 if dtype == "float32" else gpu.bfloat16) * 1e12


# NVIDIA's data sheets: without sparsity; float32 outside of tensor cores, as torch computes it; links are
# NVLink where the card has it, else PCIe.
GPUS: Mapping[str, Gpu] = {
    "B200": Gpu(2250.0, 75.0, 8.0, 180, 900.0),
    "H200": Gpu(989.0, 67.0, 4.8, 141, 450.0),
    "H100": Gpu(989.0, 67.0, 3.35, 80, 450.0),
    "H100 PCIe": Gpu(756.0, 51.0, 2.0, 80, 64.0),
    "H100 NVL": Gpu(835.0, 60.0, 3.9, 94, 300.0),
    "A100": Gpu(312.0, 19.5, 1.55, 40, 300.0),
    "A100-SXM4-80GB": Gpu(312.0, 19.5, 2.04, 80, 300.0),
    "A10": Gpu(125.0, 31.2, 0.6, 24, 32.0),
    "A40": Gpu(149.7, 37.4, 0.7, 48, 32.0),
    "L4": Gpu(121.0, 30.3, 0.3, 24, 32.0),
    "L40S": Gpu(362.0, 91.6, 0.86, 48, 32.0),
    "RTX 3090": Gpu(71.0, 35.6, 0.94, 24, 32.0),
    "RTX 4090": Gpu(165.2, 82.6, 1.01, 24, 32.0),
}
