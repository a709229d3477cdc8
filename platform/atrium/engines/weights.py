"""Loading of weights, with checks for missing, unexpected and contradictory tensors.

Without these checks, an engine could silently keep an old tensor and sample from another policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from atrium.base.errors import EngineError
from atrium.models.shards import full_tensor, local_tensor


def load_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy a full `state_dict` into `model`, except for tensors that share the model's memory.

    Sharded weights are gathered one by one. Raises `EngineError`, with nothing changed, for weights that
    `check_weights` rejects.
    """
    own = model.state_dict()
    check_weights(own, weights)
    with torch.no_grad():
        for name, target in own.items():
            source = weights[name]
            if local_tensor(source).data_ptr() != target.data_ptr():
                target.copy_(full_tensor(source))


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raise `EngineError` unless names and shapes are exactly those of `own`, a model's `state_dict`.

    Tied weights must appear under each of their names, with equal values.
    """
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if missing or unexpected:
        raise EngineError(
            f"the weights do not fit the model (missing: {_names(missing)}; unexpected: "
            f"{_names(unexpected)}); pass the full state_dict, including tied heads"
        )
    first_of: dict[int, str] = {}
    for name, target in own.items():
        source = weights[name]
        if source.shape != target.shape:
            raise EngineError(
                f"the weight {name} has shape {tuple(source.shape)}, expected {tuple(target.shape)}; "
                "pass weights of the same architecture"
            )
        # Names are kept, not tensors: merged weights are computed on access and would fill the memory.
        tied_name = first_of.setdefault(local_tensor(target).data_ptr(), name)
        tied = source if tied_name == name else weights[tied_name]
        is_same = local_tensor(source).data_ptr() == local_tensor(tied).data_ptr()
        if not is_same and not torch.equal(local_tensor(source), local_tensor(tied)):
            raise EngineError(
                f"{tied_name} and {name} must be equal, since the model ties them, but their weights "
                "differ; pass equal weights, or load the model with tie_word_embeddings=false"
            )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) or "none"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
