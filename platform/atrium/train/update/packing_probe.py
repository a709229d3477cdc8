"""A probe of whether a model supports packed tokens: all layers must use plain causal attention.

One short pass records what each layer passes to its attention. Masks are checked by calling their mask
functions at distances of up to 2^30 tokens, so a window or chunk of any length is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from atrium.base.errors import ConfigError
from atrium.models.blocks import decoder_of
from atrium.models.context import windows
from atrium.models.sources import one_line
from atrium.train.update.packed_attention import attention_obstacle, attention_of

_NAME = "atrium_packing_probe"
_NUM_TOKENS = 8
_MODEL_ERRORS = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError)
"""Errors that a model's own code raises if it needs a mask, or its own attention."""


@dataclass
class _Calls:
    """The number of attention calls in one pass, and the obstacles to packing found in their arguments."""

    num_calls: int = 0
    obstacles: list[str] = field(default_factory=list)


def packing_obstacle(model: PreTrainedModel, device: torch.device) -> str | None:
    """Return a short reason why the model cannot compute packed tokens, or None if it can."""
    calls = _Calls()
    position_1N = torch.arange(_NUM_TOKENS, device=device)[None]
    config = model.config.get_text_config()
    token_1N = position_1N % config.vocab_size
    try:
        with torch.no_grad(), attention_of(model, _NAME):
            decoder_of(model)(input_ids=token_1N, position_ids=position_1N, use_cache=False, packing=calls)
    except torch.OutOfMemoryError:
        raise
    except ConfigError as error:
        calls.obstacles.append(str(error))
    except _MODEL_ERRORS as error:
        calls.obstacles.append(f"{type(model).__name__} needs its own mask ({one_line(error)})")
    if calls.obstacles:
        named = ", ".join(f"{name}={size}" for name, size in windows(config.to_dict()).items())
        return calls.obstacles[0] + (f" ({named})" if named else "")
    if calls.num_calls < config.num_hidden_layers:
        return (
            f"only {calls.num_calls} of the {config.num_hidden_layers} layers of {type(model).__name__} call "
            "the attention interface of transformers"
        )
    return None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    *,
    packing: _Calls | None = None,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Check the arguments of a layer's attention, and return the value states in place of attention outputs.

    The value states are not mixed over tokens. Each key-value head is repeated for its query heads.
    """
    obstacle = attention_obstacle(module, query, value, attention_mask, packing, others)
    if packing is None:
        raise ConfigError(obstacle)
    packing.num_calls += 1
    packing.obstacles += [] if obstacle is None else [obstacle]
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2).contiguous(), None


def _mask(
    *,
    mask_function: Callable[..., Any],
    q_length: int,
    kv_length: int,
    device: Any = "cpu",  # noqa: ANN401 - as torch takes it
    **_: object,
) -> Tensor | None:
    """Return None for a plain causal mask, and a mask [1, 1, Q, K] for any other.

    Layers pass the mask on to their attention, and `attention_obstacle` reports a layer that receives one.
    """
    if _is_causal(mask_function, device):
        return None
    return torch.ones(1, 1, q_length, kv_length, dtype=torch.bool, device=device).tril()


def _is_causal(mask_function: Callable[..., Any], device: Any) -> bool:  # noqa: ANN401 - as torch takes it
    """Return whether the mask lets a query attend to exactly its own position and all earlier ones."""
    near = {0, *(2**power + offset for power in range(31) for offset in (-1, 0, 1))}
    position = torch.tensor(sorted(near), device=device)
    query, key = position[:, None], position[None]
    first = torch.zeros((), dtype=torch.int64, device=device)
    seen = mask_function(first, first, query, key)
    return bool((torch.as_tensor(seen, device=device) == (key <= query)).all())


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _mask)
