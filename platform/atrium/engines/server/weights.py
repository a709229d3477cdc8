"""Safetensors files from which servers load weights, in shared memory or in a folder that machines share."""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from atrium.models.shards import full_tensor

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


class WeightFiles:
    """A writer of model folders in the transformers format, one per weight version.

    The folders are in `base`, and all but the newest `num_kept` are deleted. `config` is the content of
    `config.json`. Floating-point weights are rounded to `dtype` if it is given. Tensors are written one after
    the other, so that writing needs no copy of the model besides the file, which may be in shared memory.
    """

    def __init__(self, base: Path, config: str, dtype: torch.dtype | None, num_kept: int) -> None:
        self._base = base
        self._config = config
        self._dtype = dtype
        self._num_kept = num_kept
        self._folders: list[Path] = []

    def write(self, weights: Mapping[str, Tensor], version: int) -> Path:
        """Write a full `state_dict` to a new folder, delete outdated folders, and return the new folder."""
        folder = self._base / str(version)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "config.json").write_text(self._config, encoding="utf-8")
        self._write(weights, folder / "model.safetensors")
        self._folders = [*(one for one in self._folders if one != folder), folder]
        while len(self._folders) > self._num_kept:
            shutil.rmtree(self._folders.pop(0), ignore_errors=True)
        return folder

    def _write(self, weights: Mapping[str, Tensor], path: Path) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        places, offset = {}, 0
        for name, weight in weights.items():
            rounds = self._dtype is not None and weight.is_floating_point()
            dtype, shape = self._dtype if rounds and self._dtype else weight.dtype, list(weight.shape)
            end = offset + prod(shape) * dtype.itemsize
            header[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [offset, end]}
            places[name], offset = (dtype, offset), end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        first = 8 + len(text)
        with path.open("w+b") as file:
            file.truncate(first + offset)
            file.write(len(text).to_bytes(8, "little") + text)
            file.flush()
            memory = mmap.mmap(file.fileno(), 0)
            with torch.no_grad():
                for name, (dtype, place) in places.items():
                    whole = full_tensor(weights[name])
                    torch.frombuffer(memory, dtype=dtype, count=whole.numel(), offset=first + place).view(
                        whole.shape
                    ).copy_(whole)
