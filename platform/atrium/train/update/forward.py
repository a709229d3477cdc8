"""The policy's log-probabilities and entropies at the sampled tokens of a batch of rows.

Rows are packed: there is no padding, and a prompt shared by several rows is computed only once (see
`packing`). Only positions that predict a completion token reach the LM head (see `token_logprobs`).

Axes: B rows, L tokens of a row, T completion tokens, D width of the model, N computed tokens, M completion
tokens of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig

from atrium.engines.collate import RolloutRows, on_device
from atrium.method.batch import PolicyTokens
from atrium.models.blocks import decoder_of
from atrium.train.guard.recomputed_blocks import RecomputedBlocks
from atrium.train.update.compiled_blocks import CompiledBlocks
from atrium.train.update.divergence_meter import DivergenceMeter
from atrium.train.update.micro_batches import split_by_length, split_by_tokens
from atrium.train.update.packed_attention import gathered, packed_states
from atrium.train.update.packing import Packing, num_packed_tokens, pack, rows_and_offsets
from atrium.train.update.token_logprobs import Entropy, HeadKernel, check_triton, token_logprobs

if TYPE_CHECKING:  # a run on one process loads nothing of torch.distributed
    from atrium.train.ranks.sharding import ShardedModel

_Tensors = tuple[Tensor | None, ...]


@dataclass(eq=False)
class PolicyForward:
    """The forward pass of training, which computes `PolicyTokens` from rows.

    Parameters
    ----------
    model
        A transformers causal language model, in eval mode (no dropout).
    temperature
        The sampling temperature of completions, which log-probabilities and entropies include.
    autocast_dtype
        The dtype of the computation, or None for the weights' dtype.
    meter
        The meter of divergences from the policy at the start of the step, or None if none are needed.
    packing
        Whether to compute packed tokens instead of whole rows padded on the right, which need no mask under
        causal attention. Values and gradients of both are equal up to rounding.
    sharded
        The model as sharded over ranks, or None if it is not sharded. All ranks must make each call. A
        sharded model computes in its own dtype, so `autocast_dtype` is None.
    compiled
        The model's compiled blocks, or None to run it uncompiled.
    recomputes
        Whether passes with a gradient keep only the hidden states between blocks, and recompute the rest.
    float32_logits
        Whether logits are kept in float32 instead of the model's dtype (`token_logprobs`).
    head_kernel
        The implementation of the LM head's log-probabilities (`token_logprobs`).
    """

    model: nn.Module
    _: KW_ONLY
    temperature: float
    autocast_dtype: torch.dtype | None = None
    meter: DivergenceMeter | None = None
    packing: bool = True
    sharded: ShardedModel | None = None
    compiled: CompiledBlocks | None = None
    recomputes: bool = False
    float32_logits: bool = False
    head_kernel: HeadKernel = "torch"

    def __post_init__(self) -> None:
        if self.head_kernel == "triton":
            check_triton(self.device.type)
        self._recomputed = RecomputedBlocks(self.model) if self.recomputes else None
        self.decoder = decoder_of(self.model)
        self.head: nn.Module = self.model.get_output_embeddings()  # type: ignore[operator]
        embeddings = self.model.get_input_embeddings()  # type: ignore[operator]
        if isinstance(embeddings, nn.Embedding):
            # torch drops the gradient of the padding token's embedding, but completions may contain this
            # token. Padding after rows has no gradient anyway.
            embeddings.padding_idx = None

    def __call__(self, rows: RolloutRows, *, entropy: Entropy) -> PolicyTokens:
        """Return log-probabilities, entropies and divergences [B, T] of the rows' completion tokens.

        Log-probabilities have a gradient if torch's gradients are enabled. Divergences are None unless the
        rows have proximal states; see `DivergenceMeter`.
        """
        places = _Places(rows)
        logprob_M, entropy_M, divergence_M = self.run(lambda: self._tokens(rows, places, entropy))
        assert logprob_M is not None
        return PolicyTokens(
            logprob_BT=places.spread(logprob_M),
            entropy_BT=None if entropy_M is None else places.spread(entropy_M),
            divergence_BT=None if divergence_M is None else places.spread(divergence_M),
        )

    def _tokens(self, rows: RolloutRows, places: _Places, entropy: Entropy) -> _Tensors:
        """Return log-probabilities, entropies and divergences [M] of all completion tokens."""
        state_MD = self._states(rows)
        token_M = rows.token_BL.flatten().index_select(0, places.column_M)
        divergence_M = None
        with self.autocast():
            logprob_M, entropy_M = token_logprobs(
                self.head,
                state_MD,
                token_M,
                temperature=self.temperature,
                entropy=entropy,
                float32_logits=self.float32_logits,
                kernel=self.head_kernel,
            )
            if self.meter is not None and rows.proximal_state_BTD is not None:
                proximal_MD = rows.proximal_state_BTD.flatten(0, 1).index_select(0, places.place_M)
                divergence_M = self.meter.measure(
                    proximal_MD, state_MD.detach(), token_M, self.head, self.temperature
                )
        return logprob_M, entropy_M, divergence_M

    def states(self, rows: RolloutRows) -> Tensor:
        """Return the last hidden states [B, T, D] that predict completion tokens; 0 beyond a row's end."""
        (state_MD,) = self.run(lambda: (self._states(rows),))
        assert state_MD is not None
        return _Places(rows).spread(state_MD)

    @property
    def text_config(self) -> PreTrainedConfig:
        """The language model's configuration, which multimodal models nest in their own."""
        config: PreTrainedConfig = self.model.config.get_text_config()  # type: ignore[union-attr, operator]
        return config

    @property
    def is_sharded(self) -> bool:
        """Whether the model is sharded over ranks."""
        return self.sharded is not None

    def recomputing(self) -> Self:
        """Return a copy that recomputes activations; raise `ConfigError` if the model cannot do so."""
        return replace(self, recomputes=True)

    def freeze_proximal_head(self) -> None:
        """Store a copy of the current LM head, which turns this step's proximal states into logits."""
        if self.meter is not None:
            self.run(self._freeze)

    def _freeze(self) -> _Tensors:
        assert self.meter is not None
        self.meter.freeze(self.head)
        return ()

    def num_positions(self, rows: RolloutRows) -> int:
        """Return the number of positions that the model computes for these rows, including padding."""
        if not self.packing:
            return math.prod(rows.token_BL.shape)
        return num_packed_tokens(*rows.lengths)

    def split(self, rows: RolloutRows, subset: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
        """Divide the rows of `subset` into micro-batches of at most `max_tokens`; return their row indices.

        A single row with more tokens is a micro-batch of its own. A shared prompt counts in each of its rows.
        Packed micro-batches have about equal numbers of tokens. Padded micro-batches contain rows of similar
        length, and the limit includes padding.
        """
        length_B = rows.num_tokens_B[subset]
        if self.packing:
            return [subset[part] for part in split_by_tokens(length_B, max_tokens=max_tokens)]
        return [subset[part] for part in split_by_length(length_B, max_tokens=max_tokens)]

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Prepare a micro-batch's backward pass.

        A sharded model with `exchanges_once` exchanges gradients between ranks only after the last
        micro-batch.
        """
        if self.sharded is not None:
            self.sharded.begin_micro_batch(is_last=is_last)

    def run(self, compute: Callable[[], _Tensors]) -> _Tensors:
        """Call `compute` and return its result. A sharded model first gathers its parameters."""
        return compute() if self.sharded is None else self.sharded.run(compute)

    def whole_states(self, token_BL: Tensor) -> Tensor:
        """Return the last hidden states [B, L, D] of unpacked rows, by the model's own decoder."""
        state_BLD: Tensor = self.decoder(input_ids=token_BL, use_cache=False).last_hidden_state
        return state_BLD

    def whole_logprobs(self, row: RolloutRows) -> Tensor:
        """Return the log-probabilities [T] of a single row's completion, by the model's own forward pass."""

        def compute() -> _Tensors:
            with self.autocast():
                logits = self.model(input_ids=row.token_BL, use_cache=False).logits[0]
            num_prompt, num_tokens = int(row.num_prompt_tokens_B[0]), int(row.num_tokens_B[0])
            logit_TV = logits[num_prompt - 1 : num_tokens - 1].float() / self.temperature
            token_T1 = row.token_BL[0, num_prompt:num_tokens, None]
            return (logit_TV.log_softmax(-1).gather(-1, token_T1)[:, 0],)

        (logprob_T,) = self.run(compute)
        assert logprob_T is not None
        return logprob_T

    def packed_states(self, token_BL: Tensor, num_prompt: int, *, pads: bool) -> Tensor:
        """Return the last hidden states [B, L - num_prompt, D] that predict the tokens after the prompt.

        The first `num_prompt` tokens of all rows are equal. `pads` is as in `PolicyForward.pads`.
        """
        num_rows, length = token_BL.shape
        sizes = np.full(num_rows, num_prompt), np.full(num_rows, length), np.zeros(num_rows, dtype=np.int64)
        packing = pack(token_BL, *sizes, padded=pads)
        packed_BTD: Tensor = gathered(self._packed(packing), packing.predicting).unflatten(0, (num_rows, -1))
        return packed_BTD

    def _states(self, rows: RolloutRows) -> Tensor:
        """Return the last hidden states [M, D] that predict the completion tokens."""
        with self.autocast():
            if self.packing:
                packing = pack(rows.token_BL, *rows.lengths, padded=self.pads)
                return gathered(self._packed(packing), packing.predicting)
            with self._recomputed.used() if self._recomputed else nullcontext():
                state_BLD = self.whole_states(rows.token_BL)
        return state_BLD.flatten(0, 1).index_select(0, _Places(rows).column_M - 1)

    def _packed(self, packing: Packing) -> Tensor:
        with (
            self.compiled.used() if self.compiled else nullcontext(),
            self._recomputed.used() if self._recomputed else nullcontext(),
        ):
            return packed_states(self.model, packing)

    @property
    def pads(self) -> bool:
        """Whether attention pads rows. Torch's kernel without padding requires a GPU and half precision."""
        return not (self.device.type == "cuda" and self.dtype.itemsize == 2)

    @property
    def device(self) -> torch.device:
        """The device on which the model computes."""
        return next(self.model.parameters()).device if self.sharded is None else self.sharded.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the model computes, under autocast if it is used."""
        if self.sharded is not None:
            return self.sharded.dtype
        return self.autocast_dtype or next(self.model.parameters()).dtype

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context manager for autocast to `autocast_dtype`; it has no effect if this is None."""
        if self.autocast_dtype is None:
            return nullcontext()
        device_type = next(self.model.parameters()).device.type
        return torch.autocast(device_type, dtype=self.autocast_dtype)


class _Places:
    """The positions of all rows' M completion tokens; the indices are computed from lengths on the host.

    `place_M` contains flat indices into [B, T], and `column_M` flat indices into `token_BL` [B, L].
    """

    def __init__(self, rows: RolloutRows) -> None:
        self._shape = rows.batch.mask_BT.shape
        row_M, offset_M = rows_and_offsets(rows.num_completion_tokens_B)
        device, length = rows.token_BL.device, rows.token_BL.shape[1]
        self.place_M = on_device(row_M * self._shape[1] + offset_M, device)
        self.column_M = on_device(row_M * length + rows.num_prompt_tokens_B[row_M] + offset_M, device)

    def spread(self, value_M: Tensor) -> Tensor:
        """Return the values of completion tokens at their positions [B, T, ...], and 0 elsewhere."""
        flat = value_M.new_zeros((self._shape.numel(), *value_M.shape[1:]))
        spread: Tensor = flat.index_copy(0, self.place_M, value_M).unflatten(0, self._shape)
        return spread
