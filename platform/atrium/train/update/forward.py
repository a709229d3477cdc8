"""What the policy says about sampled tokens: log-probabilities and entropies of a batch of rows.

Rows are packed: no padding is computed, and a prompt that several rows share only once (see `packing`).
Only positions that predict a completion token reach the LM head (see `token_logprobs`).

Axes: B rows, L tokens of a row, T completion tokens, D width of the model, N computed tokens, M completion
tokens of all rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atrium.errors import ConfigError
from atrium.models.qwen3 import has_fused_form
from atrium.objective.batch import PolicyTokens
from atrium.rollout.collate import RolloutRows, on_device
from atrium.train.guard.recomputed_blocks import RecomputedBlocks
from atrium.train.update.compiled_blocks import CompiledBlocks
from atrium.train.update.divergence_meter import DivergenceMeter
from atrium.train.update.micro_batches import split_by_length, split_by_tokens
from atrium.train.update.packed_attention import gathered, packed_states
from atrium.train.update.packing import Packing, num_packed_tokens, pack, rows_and_offsets
from atrium.train.update.qwen3_states import qwen3_states
from atrium.train.update.token_logprobs import Entropy, token_logprobs

if TYPE_CHECKING:  # a run on one process loads nothing of torch.distributed
    from atrium.train.ranks.sharding import ShardedModel

_Tensors = tuple[Tensor | None, ...]

_PACKED_ERROR, _HALF_PACKED_ERROR = 1e-3, 0.05
"""What a packed state may differ by, relative to its norm, in single and in half precision.

Rounding was 1e-6 and 0.01 in 28 random and 30 pretrained layers; wrong masks and positions give .06 to 1.
"""


class PolicyForward:
    """The forward pass of training: rows in, `PolicyTokens` out.

    Parameters
    ----------
    model
        A transformers causal language model, in eval mode (no dropout).
    temperature
        The temperature that completions are sampled at; log-probabilities are those of that distribution.
    autocast_dtype
        Compute in this dtype over the model's own weights, or None for the weights' dtype.
    meter
        Measures state divergences from the policy as the step begins, where the objective needs them.
    packing
        Compute packed tokens; otherwise whole rows, padded on the right, where causal attention makes a
        mask unnecessary. Values and gradients are the same to rounding.
    sharded
        How the model runs where it is spread over ranks, which then all make each call; it computes in
        its own dtype, and `autocast_dtype` is None.
    compiled
        The model's compiled blocks, or None to run it as it is.
    recomputes
        Whether passes with a gradient keep what lies between blocks only, and compute the rest again.
    float32_logits
        Whether logits are not rounded to what the model computes in (`token_logprobs`).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        autocast_dtype: torch.dtype | None = None,
        packing: bool = True,
        meter: DivergenceMeter | None = None,
        sharded: ShardedModel | None = None,
        compiled: CompiledBlocks | None = None,
        recomputes: bool = False,
        float32_logits: bool = False,
    ) -> None:
        self.model = model
        self._float32_logits = float32_logits
        self.temperature = temperature
        self.autocast_dtype = autocast_dtype
        self.packing = packing
        self._meter = meter
        self._sharded = sharded
        self._compiled = compiled
        self._recomputed = RecomputedBlocks(model) if recomputes else None
        self._base: nn.Module = model.base_model  # type: ignore[assignment]
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        embeddings = model.get_input_embeddings()  # type: ignore[operator]
        if isinstance(embeddings, nn.Embedding):
            # torch drops the gradient of the padding token's embedding, but one that was sampled is a token
            # like any other; what pads rows stands behind them and has no gradient.
            embeddings.padding_idx = None

    def __call__(self, rows: RolloutRows, *, entropy: Entropy) -> PolicyTokens:
        """Log-probabilities [B, T] of the rows' completion tokens, with gradient where grad is enabled.

        The divergence is measured where the rows hold proximal states; see `DivergenceMeter`.
        """
        places = _Places(rows)
        logprob_M, entropy_M, divergence_M = self._run(lambda: self._tokens(rows, places, entropy))
        assert logprob_M is not None
        return PolicyTokens(
            logprob_BT=places.spread(logprob_M),
            entropy_BT=None if entropy_M is None else places.spread(entropy_M),
            divergence_BT=None if divergence_M is None else places.spread(divergence_M),
        )

    def _tokens(self, rows: RolloutRows, places: _Places, entropy: Entropy) -> _Tensors:
        """Log-probabilities, entropies and divergences [M] of all completion tokens."""
        state_MD = self._states(rows)
        token_M = rows.token_BL.flatten().index_select(0, places.column_M)
        divergence_M = None
        with self._autocast():
            logprob_M, entropy_M = token_logprobs(
                self._head,
                state_MD,
                token_M,
                temperature=self.temperature,
                entropy=entropy,
                float32_logits=self._float32_logits,
            )
            if self._meter is not None and rows.proximal_state_BTD is not None:
                proximal_MD = rows.proximal_state_BTD.flatten(0, 1).index_select(0, places.place_M)
                divergence_M = self._meter.measure(
                    proximal_MD, state_MD.detach(), token_M, self._head, self.temperature
                )
        return logprob_M, entropy_M, divergence_M

    def states(self, rows: RolloutRows) -> Tensor:
        """The model's last states [B, T, D] at the positions that predict the completion tokens, else 0."""
        (state_MD,) = self._run(lambda: (self._states(rows),))
        assert state_MD is not None
        return _Places(rows).spread(state_MD)

    @property
    def recomputes(self) -> bool:
        """Whether passes with a gradient compute activations again."""
        return self._recomputed is not None

    def recomputing(self) -> Self:
        """The same pass, which computes activations again; raises `ConfigError` where that is not known."""
        other = copy.copy(self)
        other._recomputed = RecomputedBlocks(self.model)
        return other

    def freeze_proximal_head(self) -> None:
        """Keep the LM head as it is now, for the proximal states of this step."""
        if self._meter is not None:
            self._run(self._freeze)

    def _freeze(self) -> _Tensors:
        assert self._meter is not None
        self._meter.freeze(self._head)
        return ()

    def num_positions(self, rows: RolloutRows) -> int:
        """The positions that the model computes for these rows, padding included."""
        if not self.packing:
            return math.prod(rows.token_BL.shape)
        return num_packed_tokens(rows.num_prompt_tokens_B, rows.num_tokens_B, rows.prompt_index_B)

    def split(self, rows: RolloutRows, subset: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
        """Cut a subset of the rows into micro-batches of at most `max_tokens`, as if prompts were not shared.

        Packed, they have about equal tokens; else similar lengths, and the bound is on padded tokens.
        """
        length_B = rows.num_tokens_B[subset]
        if self.packing:
            return [subset[part] for part in split_by_tokens(length_B, max_tokens=max_tokens)]
        return [subset[part] for part in split_by_length(length_B, max_tokens=max_tokens)]

    def _run(self, compute: Callable[[], _Tensors]) -> _Tensors:
        return compute() if self._sharded is None else self._sharded.run(compute)

    def check(self, token_ids: list[int]) -> None:
        """Raise `ConfigError` unless this pass computes what the whole model does on some different tokens.

        Some architectures scale or cap logits behind the head, or attend in ways of their own; training
        on other log-probabilities than the engine's would be silent.
        """
        name = type(self.model).__name__
        num_prompt = len(token_ids) // 2
        again = token_ids[:num_prompt] + token_ids[: num_prompt - 1 : -1]
        token_BL = torch.tensor([token_ids, again], device=self.device)
        with torch.no_grad():
            logits, headed, state_BTD, packed_BTD = self._run(lambda: self._both_ways(token_BL, num_prompt))
        assert logits is not None
        assert headed is not None
        assert state_BTD is not None
        if not torch.allclose(logits.float(), headed.float(), atol=1e-4, rtol=1e-4):
            raise ConfigError(
                f"model of type {name} changes its logits behind the LM head, which training does not "
                "support; choose another model"
            )
        if packed_BTD is None:
            return
        error = _typical_error(packed_BTD, state_BTD)
        allowed = _HALF_PACKED_ERROR if self._dtype.itemsize == 2 else _PACKED_ERROR
        if not error <= allowed:  # which NaN is not either
            raise ConfigError(
                f"model of type {name} computes something else on packed tokens: its states differ by "
                f"{error:.1%}, allowed is {allowed:.1%}; set compute.packing=false"
            )

    def _both_ways(self, token_BL: Tensor, num_prompt: int) -> _Tensors:
        """Logits of the whole model, those of its head on its last states, and these states, also packed."""
        whole = self.model(input_ids=token_BL, use_cache=False)
        headed = self._head(self._base(input_ids=token_BL, use_cache=False).last_hidden_state)
        lengths = np.full(2, num_prompt), np.full(2, token_BL.shape[1]), np.zeros(2, dtype=np.int64)
        packed_BTD = None
        with self._autocast():
            state_BLD: Tensor = self._base(input_ids=token_BL, use_cache=False).last_hidden_state
            if self.packing:
                packing = pack(token_BL, *lengths, padded=self._pads)
                packed_MD = gathered(self._packed(packing), packing.predicting)
                packed_BTD = packed_MD.unflatten(0, (2, -1))
        return whole.logits, headed, state_BLD[:, num_prompt - 1 : -1], packed_BTD

    def _states(self, rows: RolloutRows) -> Tensor:
        """The last states that predict the completion tokens [M, D]."""
        with self._autocast():
            if self.packing:
                packing = pack(
                    rows.token_BL,
                    rows.num_prompt_tokens_B,
                    rows.num_tokens_B,
                    rows.prompt_index_B,
                    padded=self._pads,
                )
                return gathered(self._packed(packing), packing.predicting)
            with self._recomputed.used() if self._recomputed else nullcontext():
                state_BLD: Tensor = self._base(input_ids=rows.token_BL, use_cache=False).last_hidden_state
        return state_BLD.flatten(0, 1).index_select(0, _Places(rows).column_M - 1)

    def _packed(self, packing: Packing) -> Tensor:
        if self._is_fused:
            return qwen3_states(self.model, packing, recomputes=self.recomputes)
        with (
            self._compiled.used() if self._compiled else nullcontext(),
            self._recomputed.used() if self._recomputed else nullcontext(),
        ):
            return packed_states(self.model, packing)

    @cached_property
    def _is_fused(self) -> bool:
        return self.autocast_dtype is None and self._sharded is None and has_fused_form(self.model)

    @property
    def _pads(self) -> bool:
        """Whether attention pads: torch's kernel for rows of any length is for GPUs in half precision."""
        return not (self.device.type == "cuda" and self._dtype.itemsize == 2)

    @property
    def device(self) -> torch.device:
        """Where the model lies and computes."""
        return next(self.model.parameters()).device if self._sharded is None else self._sharded.device

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype that the model computes in."""
        if self._sharded is not None:
            return self._sharded.dtype
        return self.autocast_dtype or next(self.model.parameters()).dtype

    def _autocast(self) -> AbstractContextManager[object]:
        if self.autocast_dtype is None:
            return nullcontext()
        device_type = next(self.model.parameters()).device.type
        return torch.autocast(device_type, dtype=self.autocast_dtype)


class _Places:
    """Where the M completion tokens of all rows stand: indices from lengths, for which no GPU is asked.

    `place_M` counts the places of [B, T], and `column_M` those of `token_BL`.
    """

    def __init__(self, rows: RolloutRows) -> None:
        self._shape = rows.batch.mask_BT.shape
        row_M, offset_M = rows_and_offsets(rows.num_completion_tokens_B)
        device, length = rows.token_BL.device, rows.token_BL.shape[1]
        self.place_M = on_device(row_M * self._shape[1] + offset_M, device)
        self.column_M = on_device(row_M * length + rows.num_prompt_tokens_B[row_M] + offset_M, device)

    def spread(self, value_M: Tensor) -> Tensor:
        """The values of completion tokens at their places [B, T, ...], 0 elsewhere."""
        flat = value_M.new_zeros((self._shape.numel(), *value_M.shape[1:]))
        spread: Tensor = flat.index_copy(0, self.place_M, value_M).unflatten(0, self._shape)
        return spread


def _typical_error(found_BTD: Tensor, expected_BTD: Tensor) -> float:
    """How far a row's states are off, relative to each one's norm: the median over tokens, of the worse row.

    No single token decides: pretrained models let activations of a few grow a thousand times and fall again,
    which leaves of these tokens little but rounding.
    """
    expected_BTD = expected_BTD.float()
    difference_BT = (found_BTD.float() - expected_BTD).norm(dim=-1)
    error_BT = difference_BT / expected_BTD.norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(error_BT.median(dim=1).values.max())
