"""Adapters that vLLM applies itself. It loads the base weights once, and the adapters after each update.

vLLM reads both from files. If adapters were merged in bfloat16, the sum of a base weight and its adapter's
change would be rounded. With separate adapters, only the base weights and the adapters are rounded.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from atrium.engines.vllm_start import Base, model_config
from atrium.models.lora import adapter_weights, base_weights, write_adapter

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The maximum ranks that vLLM 0.25 to 0.33 can be configured with."""


class AdapterFiles:
    """Temporary files with a policy's base weights, and with its adapters after the last two updates."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._owned = tempfile.TemporaryDirectory(prefix="atrium-adapters-")
        self._folder = Path(self._owned.name)
        self._num = 0

    def base(self, dtype: str) -> Base:
        """Write the weights without adapters, rounded to `dtype`, in the transformers format.

        Returns their folder, and the smallest rank in `_RANKS` that is at least the adapters' rank.
        """
        folder = self._folder / "base"
        folder.mkdir()
        (folder / "config.json").write_text(model_config(self._model), encoding="utf-8")
        found = {one.data_ptr(): (name, one) for name, one in reversed(base_weights(self._model).items())}
        weights = {
            name: one.detach().to(getattr(torch, dtype)).cpu().contiguous() for name, one in found.values()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        rank = next(len(value) for name, value in adapter_weights(self._model).items() if "lora_A" in name)
        return Base(folder, next(one for one in _RANKS if one >= rank))

    def drop_base(self) -> None:
        """Delete the base weights once vLLM has loaded them."""
        shutil.rmtree(self._folder / "base", ignore_errors=True)

    def request(self) -> Any:  # noqa: ANN401 - vLLM has no types here
        """Write the current adapters, and return the `LoRARequest` with which vLLM loads them."""
        from vllm.lora.request import LoRARequest

        self._num += 1
        folder = self._folder / str(self._num)
        write_adapter(self._model, folder)
        shutil.rmtree(self._folder / str(self._num - 2), ignore_errors=True)
        return LoRARequest(f"adapters-{self._num}", self._num, str(folder))

    def close(self) -> None:
        """Delete all files. Harmless when called twice."""
        self._owned.cleanup()
