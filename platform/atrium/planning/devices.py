"""Data-sheet values of GPUs, used for utilization and planning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data-sheet values of a GPU.

    `bfloat16` and `float32` are peak rates of dense matrix products in 10^12 operations per second. Memory
    bandwidth (`terabytes_s`) is in 10^12 bytes per second and memory size (`gigabytes`) in 10^9 bytes.
    `link_gigabytes_s` is the bandwidth of the link to another GPU of the same machine, in 10^9 bytes per
    second in each direction.
    """

    bfloat16: float
    float32: float
    terabytes_s: float
    gigabytes: int
    link_gigabytes_s: float


def find_gpu(device_name: str) -> Gpu | None:
    """Return the GPU named in a device name such as `NVIDIA H100 80GB HBM3`, or None if it is unknown.

    Only whole words match, so that an `L40` is not mistaken for an `L4`. The longest match wins, so that an
    `H100 PCIe` is not mistaken for the faster `H100`.
    """
    found = [name for name in GPUS if re.search(rf"\b{name}\b", device_name, re.IGNORECASE)]
    return GPUS[max(found, key=len)] if found else None


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Return the peak rate of dense matrix products in FLOP/s, or None if the GPU is unknown.

    `dtype` is `float32` or `bfloat16`.
    """
    gpu = find_gpu(device_name)
    return None if gpu is None else (gpu.float32 if dtype == "float32" else gpu.bfloat16) * 1e12


# From NVIDIA's data sheets, without sparsity. float32 is the rate without tensor cores, torch's default.
# The link is NVLink where the product includes it, else PCIe: optional NVLink bridges are not counted.
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
