"""Low-rank adapters (LoRA) in a policy: adding, disabling, merging and storing them.

The library peft inserts the adapters into the model in place: each chosen linear layer W becomes W + (alpha /
rank) B A, of which only A and B are trained. B is initially 0, so the policy is initially unchanged. Merged
weights are computed in new tensors, one layer at a time. W itself never changes, so merging the adapters
again and again loses no precision. Adapters are stored in peft's own format, as safetensors.

Source: LoRA, arXiv 2106.09685, equation 3.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from atrium.base.errors import CheckpointError, reason_of
from atrium.models.settings import LoraSettings
from atrium.models.shape import chosen_maps
from atrium.models.shards import full_tensor, sharded_like
from atrium.models.sources import first_of

ADAPTER_FOLDER = "adapter"
"""Folder of a saved policy with its adapters, in peft's format."""

_NAME = "default"
_WEIGHTS = "adapter_model.safetensors"
_BASE, _PARTS = ".base_layer", (".lora_A.", ".lora_B.")
_PREFIX = "base_model.model."  # of every name in a file that peft writes


def add_lora(model: PreTrainedModel, settings: LoraSettings, *, seed: int, source: str | None = None) -> None:
    """Add adapters to the model, in place, and freeze everything else.

    The initial A depends only on the seed; the global random state is unchanged. `source` is the name of the
    base model to record in the stored adapters. Dropout is not used, since it would make the trained policy
    differ from the sampled policy. Raises `ConfigError` if `settings.target_modules` contains a name that no
    linear module of the model has.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = chosen_maps({name.rpartition(".")[2] for name in _linear_maps(model)}, settings.target_modules)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=source,
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=sorted(targets),
        exclude_modules=None if model.get_output_embeddings() is None else _head_name(model),
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(config, model, adapter_name=_NAME)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in _PARTS))
    model.eval()


def has_lora(model: nn.Module) -> bool:
    """Return whether the model has adapters."""
    return any(True for _ in _adapted(model))


def merged_weights(model: PreTrainedModel) -> Mapping[str, Tensor]:
    """Return the current policy's `state_dict` as if it were a model without adapters, including tied heads.

    Without adapters, this is the model's own `state_dict`. With adapters, W + (alpha / rank) B A is computed
    on each access to an item, so that only one merged matrix at a time need be in memory.
    """
    if has_lora(model):
        return _MergedWeights(model)
    weights: dict[str, Tensor] = model.state_dict()
    return weights


def host_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of `merged_weights` for saving, with merged matrices in host memory.

    Each merged matrix moves to the host before the next is computed. All other weights stay on their device.
    """
    base = base_weights(model)
    return {
        name: weight if weight.data_ptr() == base[name].data_ptr() else weight.cpu()
        for name, weight in merged_weights(model).items()
    }


def base_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the model's `state_dict` without the adapters, with the same names as `merged_weights`."""
    return {
        name.replace(_BASE, ""): tensor
        for name, tensor in model.state_dict().items()
        if not any(part in name for part in _PARTS)
    }


def plain_parameters(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the parameters of the current policy, with merged adapters; tied parameters appear once."""
    merged = merged_weights(model)
    names = [name for name, _ in model.named_parameters() if not any(part in name for part in _PARTS)]
    return {plain: merged[plain] for plain in (name.replace(_BASE, "") for name in names)}


def plain_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a second model with the policy's current weights, without adapters.

    The copy's parameters require gradients, like a policy's. Otherwise, torch might choose other kernels, and
    the results might differ in their last bits.
    """
    plain = copy.deepcopy(model)
    for name, layer in list(_adapted(plain)):
        plain.set_submodule(name, layer.get_base_layer())
    plain.requires_grad_(True)
    own = plain.state_dict()
    with torch.no_grad():
        for name, weight in merged_weights(model).items():
            own[name].copy_(weight)
    return plain


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Disable the adapters within the `with` block, so that the model computes as before training."""
    layers = [layer for _, layer in _adapted(model)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def write_adapter(model: PreTrainedModel, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write the adapters into a new folder, in the format that `PeftModel.from_pretrained` reads.

    `weights` is an earlier result of `adapter_weights`; None means the current adapters.
    """
    folder.mkdir()
    weights = adapter_weights(model) if weights is None else weights
    save_file(
        {_PREFIX + name: value.contiguous() for name, value in weights.items()},
        folder / _WEIGHTS,
        metadata={"format": "pt"},
    )
    record = {
        key: sorted(v) if isinstance(v, set) else v for key, v in model.peft_config[_NAME].to_dict().items()
    }
    (folder / "adapter_config.json").write_text(
        json.dumps({**record, "inference_mode": True}, indent=2, sort_keys=True), encoding="utf-8"
    )


def read_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Load the adapters in a folder; raise `CheckpointError` if they are missing or do not fit."""
    try:
        stored = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"the adapters in {folder} cannot be read: {reason_of(error)}; restore them"
        ) from error
    own = {_PREFIX + name: value for name, value in _adapter_weights(model).items()}
    misfits = sorted(own.keys() ^ stored.keys()) or sorted(
        name for name, value in own.items() if value.shape != stored[name].shape
    )
    if misfits:
        raise CheckpointError(
            f"the adapters in {folder} do not fit model.lora (missing, unexpected or of another "
            f"shape: {first_of(misfits)}); use the settings that they were trained with"
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(sharded_like(stored[name], value))


class _MergedWeights(Mapping[str, Tensor]):
    """The result of `merged_weights` for a model with adapters, which are merged when an item is read."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._base = base_weights(model)
        self._layers = {f"{name}.weight": layer for name, layer in _adapted(model)}

    def __getitem__(self, name: str) -> Tensor:
        weight = self._base[name]
        layer = self._layers.get(name)
        if layer is None:
            return weight
        with torch.no_grad():
            a, b = (full_tensor(part[_NAME].weight) for part in (layer.lora_A, layer.lora_B))
            change = (b @ a) * layer.scaling[_NAME]
            return weight + sharded_like(change.to(weight.dtype), weight)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield name and module of each linear layer with adapters.

    Modules are recognized by their attributes, so that peft need not be imported.
    """
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def adapter_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the full A and B of every adapted layer, in host memory, by their names in `model`.

    The part `default`, which is peft's name for the adapter, is removed from each name. `write_adapter`
    stores the weights under these names with the prefix `base_model.model.`. The result is empty for a model
    without adapters.
    """
    return {name: full_tensor(value).cpu() for name, value in _adapter_weights(model).items()}


def _adapter_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    return {
        name.replace(f".{_NAME}.", "."): tensor
        for name, tensor in model.state_dict().items()
        if any(part in name for part in _PARTS)
    }


def _linear_maps(model: PreTrainedModel) -> Iterator[str]:
    """Yield the names of the linear layers, except for the LM head."""
    for name, module in model.base_model.named_modules():
        if isinstance(module, nn.Linear):
            yield name


def _head_name(model: PreTrainedModel) -> str:
    head = model.get_output_embeddings()
    names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
    return names[id(head)]
