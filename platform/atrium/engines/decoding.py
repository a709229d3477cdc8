"""Decoding of a batch with a transformers model through its public interface: cache, mask, positions.

Each distinct prompt is left-padded and computed once (prefill), and all rows with this prompt share its
states. Every later step computes one token per row. The caller samples the tokens and selects the rows that
continue.

Axes: N rows, U distinct prompts, L prompt tokens with padding, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from atrium.base.errors import EngineError
from atrium.base.records import TokenIds
from atrium.models.blocks import decoder_of
from atrium.models.sources import one_line

# Initial capacity of a cache layer in new tokens; the capacity doubles when it is full.
_FIRST_ROOM = 64
_OTHERS = "use a model whose layers are all attention, or another engine"


class Decoder:
    """The model together with the cache, positions and mask of one batch.

    `logit_NV` contains the logits of the next token of each row, in the model's dtype.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[TokenIds],
        *,
        pad_token_id: int,
        max_new_tokens: int,
    ) -> None:
        """Run the model on the distinct prompts, and copy to each row the cached states of its prompt."""
        self._model = model
        self._cache = new_cache(model, max_new_tokens)
        distinct = {prompt.tobytes(): prompt for prompt in prompts}
        token_UL, is_token_UL = _pad_left(list(distinct.values()), pad_token_id)
        mask_UL = is_token_UL.to(model.device)
        position_UL = (mask_UL.cumsum(-1) - 1).clamp_(min=0)
        is_padded = not is_token_UL.all()
        if not is_padded:
            # One row of positions broadcasts over the batch, and causal attention needs no mask.
            position_UL = position_UL[:1]
        self._length = token_UL.shape[1]
        self._position = position_UL
        self._mask = mask_UL if is_padded else None
        self.logit_NV = self._forward(token_UL.to(model.device))
        self._position = position_UL[:, -1:]
        if is_padded:
            self._mask = self._decoding_mask(mask_UL, max_new_tokens)
        place = {key: place for place, key in enumerate(distinct)}
        self.select(torch.tensor([place[prompt.tobytes()] for prompt in prompts], device=model.device))

    def select(self, index_N: Tensor) -> None:
        """Replace the batch by its rows at `index_N`, in that order. Rows may be dropped or repeated."""
        self._cache.batch_select_indices(index_N)
        self.logit_NV = self.logit_NV[index_N]
        if self._mask is not None:
            self._mask = self._mask[index_N]
            self._position = self._position[index_N]

    def step(self, token_N: Tensor) -> None:
        """Append one token to every row, and compute the logits of the next token."""
        self._length += 1
        self._position = self._position + 1
        self.logit_NV = self._forward(token_N.unsqueeze(-1))

    def _forward(self, token_NL: Tensor) -> Tensor:
        output = self._model(
            input_ids=token_NL,
            attention_mask=None if self._mask is None else self._mask[..., : self._length],
            position_ids=self._position,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logit_NV: Tensor = output.logits[:, -1]
        return logit_NV

    def _decoding_mask(self, mask_UL: Tensor, max_new_tokens: int) -> Tensor:
        """Return the attention mask for all decoding steps.

        The mask has columns for all `max_new_tokens` new tokens. Each step uses only the columns up to its
        token. If every layer attends to the whole cache and the implementation of attention permits it, the
        mask is [U, 1, 1, L + T] and contains the numbers that are added to the attention scores, so that
        transformers need not compute them at every step. Otherwise, it is int64 [U, L + T] and 1 at tokens.
        """
        mask = torch.nn.functional.pad(mask_UL, (0, max_new_tokens), value=1)
        if (
            self._model.is_backend_compatible()
            and self._model.config._attn_implementation in ("sdpa", "eager")
            and all(type(layer) is PreallocatedLayer for layer in self._cache.layers)
        ):
            dtype = self._model.dtype
            mask = (1 - mask)[:, None, None].to(dtype) * torch.finfo(dtype).min
        return mask


def _pad_left(prompts: Sequence[TokenIds], pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Return the prompts as right-aligned rows, int64 [U, L], and an int64 mask that is 1 at their tokens."""
    rows = [torch.tensor(prompt, dtype=torch.int64) for prompt in prompts]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    return padded(rows, padding_value=pad_token_id), padded([torch.ones_like(row) for row in rows])


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """A full-attention cache layer with spare capacity, so that appending a token seldom copies the cache.

    `keys` and `values` [N, heads, length, head size] are views of the filled part.
    """

    def __init__(self, max_new_tokens: int) -> None:
        super().__init__()
        self._max_new_tokens = max_new_tokens
        self._prompt_length = 0
        self._key_room: Tensor
        self._value_room: Tensor
        self.keys: Tensor
        self.values: Tensor

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens, and return the keys and values of all tokens."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._prompt_length = end
            self._key_room = self._reserve(key_states, end)
            self._value_room = self._reserve(value_states, end)
        elif end > self._key_room.shape[-2]:
            self._key_room = self._reserve(self.keys, end)
            self._value_room = self._reserve(self.values, end)
        self._key_room[:, :, start:end] = key_states
        self._value_room[:, :, start:end] = value_states
        self.keys = self._key_room[:, :, :end]
        self.values = self._value_room[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Replace the batch by its rows at `indices`, in that order. Rows may be dropped or repeated."""
        length = self.get_seq_length()
        self._key_room = self._key_room[indices]
        self._value_room = self._value_room[indices]
        self.keys = self._key_room[:, :, :length]
        self.values = self._value_room[:, :, :length]

    def _reserve(self, states: Tensor, end: int) -> Tensor:
        num_new = end - self._prompt_length
        room = min(max(_FIRST_ROOM, num_new), self._max_new_tokens - num_new)
        num_rows, num_heads, length, head_size = states.shape
        reserved = states.new_empty((num_rows, num_heads, end + room, head_size))
        reserved[:, :, :length] = states
        return reserved


def new_cache(model: PreTrainedModel, max_new_tokens: int) -> DynamicCache:
    """Return a cache for the model, with spare capacity in layers that attend to all tokens.

    Raises `EngineError` for a model with a recurrent state.
    """
    cache = DynamicCache(config=model.config)
    if any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers):
        raise EngineError(
            f"{type(model).__name__} has a recurrent state, which the completions of a prompt cannot "
            f"share; {_OTHERS}"
        )
    cache.layers = [
        PreallocatedLayer(max_new_tokens) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def check_decoding(model: PreTrainedModel) -> None:
    """Raise `EngineError` unless the model has a key-value cache that completions of a prompt can share."""
    cache, name = new_cache(model, max_new_tokens=1), type(model).__name__
    try:
        with inference_mode(model):
            token_12 = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
            decoder_of(model)(input_ids=token_12, past_key_values=cache, use_cache=True)
    except (TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"{name} cannot be sampled by this engine: {one_line(error)}; {_OTHERS}") from error
    if cache.get_seq_length() != 2:
        raise EngineError(f"{name} has no key-value cache that this engine supports; {_OTHERS}")


@contextmanager
def inference_mode(model: PreTrainedModel) -> Iterator[None]:
    """Run the `with` block in evaluation mode and without gradients.

    Afterward, modules that were in training mode return to it.
    """
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
