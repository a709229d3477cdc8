"""What the policy says about sampled tokens: log-probabilities and entropies of a batch of rows.

Only positions that predict a completion token reach the LM head, and log-softmax is at least float32,
whatever the model computes in. A prompt that several rows share is computed once. Without sharing, rows
are padded on the right, where causal attention makes a mask unnecessary.

Axes: B rows, U distinct prompts, L prompt (or whole row) tokens, T completion tokens, D width of the model,
N completion tokens of all rows, V vocabulary.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache

from atrium.errors import ConfigError
from atrium.objective.batch import PolicyTokens
from atrium.rollout.collate import RolloutRows
from atrium.train.divergence_meter import DivergenceMeter
from atrium.train.microbatches import split_by_length

Entropy = Literal["none", "value", "gradient"]


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
        Measures state divergences from the behavior policy, where the objective needs them.
    share_prompts
        Compute each distinct prompt once and let its completions attend to its key-value states, instead
        of once per completion. Values and gradients are the same to rounding.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        autocast_dtype: torch.dtype | None = None,
        share_prompts: bool = True,
        meter: DivergenceMeter | None = None,
    ) -> None:
        self.model = model
        self.temperature = temperature
        self.autocast_dtype = autocast_dtype
        self.share_prompts = share_prompts
        self._meter = meter
        self._base: nn.Module = model.base_model  # type: ignore[assignment]
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]

    def __call__(self, rows: RolloutRows, *, entropy: Entropy) -> PolicyTokens:
        """Log-probabilities [B, T] of the rows' completion tokens, with gradient where grad is enabled."""
        return self.read(self.states(rows), rows, entropy=entropy)

    def states(self, rows: RolloutRows) -> Tensor:
        """The model's last states [B, T, D] at the positions that predict the completion tokens."""
        position_BT = _predicting_positions(rows)
        with self._autocast():
            if self.share_prompts:
                return self._shared_states(rows, position_BT)
            state_BLD: Tensor = self._base(input_ids=rows.token_BL, use_cache=False).last_hidden_state
        row_B1 = torch.arange(len(position_BT), device=position_BT.device)[:, None]
        return state_BLD[row_B1, position_BT.clamp(max=state_BLD.shape[1] - 1)]

    def read(self, state_BTD: Tensor, rows: RolloutRows, *, entropy: Entropy) -> PolicyTokens:
        """What the LM head says at those states, and how far it is from the behavior policy's head there.

        The divergence is measured where the rows hold behavior states; see `DivergenceMeter`.
        """
        mask_BT = rows.batch.mask_BT
        column_BT = (_predicting_positions(rows) + 1).clamp(max=rows.token_BL.shape[1] - 1)
        token_N = rows.token_BL.gather(1, column_BT)[mask_BT]
        with self._autocast():
            logits_NV = self._head(state_BTD[mask_BT])
            logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        if self.temperature != 1.0:
            logits_NV = logits_NV / self.temperature
        logprob_N, entropy_N = selected_logprobs(logits_NV, token_N, entropy=entropy)
        divergence_BT = None
        if self._meter is not None and rows.behavior_state_BTD is not None:
            behavior_ND = rows.behavior_state_BTD[mask_BT]
            divergence_N = self._meter.measure(behavior_ND, logits_NV.detach(), self.temperature)
            divergence_BT = _spread(divergence_N, mask_BT)
        return PolicyTokens(
            logprob_BT=_spread(logprob_N, mask_BT),
            entropy_BT=None if entropy_N is None else _spread(entropy_N, mask_BT),
            divergence_BT=divergence_BT,
        )

    def freeze_behavior_head(self) -> None:
        """Keep the LM head as it is now, for the behavior states of this step."""
        if self._meter is not None:
            self._meter.freeze(self._head)

    def num_positions(self, rows: RolloutRows) -> int:
        """The positions that the model computes for these rows, padding included."""
        if not self.share_prompts:
            return math.prod(rows.token_BL.shape)
        num_prompts = len(np.unique(rows.prompt_index_B))
        longest_prompt = int(rows.num_prompt_tokens_B.max(initial=0))
        return num_prompts * longest_prompt + rows.batch.num_rows * (rows.batch.mask_BT.shape[1] - 1)

    def split(self, rows: RolloutRows, subset: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
        """Cut a subset of the rows into micro-batches that this pass computes with little padding.

        `max_tokens` bounds a micro-batch's padded tokens, as if prompts were not shared.
        """
        length_B = rows.num_tokens_B
        if self.share_prompts:
            length_B = rows.num_completion_tokens_B + rows.num_prompt_tokens_B.max(initial=0)
        return [subset[part] for part in split_by_length(length_B[subset], max_tokens=max_tokens)]

    def check(self, token_ids: list[int]) -> None:
        """Raise `ConfigError` unless base model and head together are the whole model.

        Some architectures scale or cap logits behind the head; training on other log-probabilities than
        the engine's would be silent.
        """
        token_BL = torch.tensor([token_ids], device=next(self.model.parameters()).device)
        with torch.no_grad():
            whole = self.model(input_ids=token_BL, use_cache=False).logits
            parts = self._head(self._base(input_ids=token_BL, use_cache=False).last_hidden_state)
        if not torch.allclose(whole.float(), parts.float(), atol=1e-4, rtol=1e-4):
            raise ConfigError(
                f"model of type {type(self.model).__name__} changes its logits behind the LM head, which "
                "training does not support; choose another model"
            )

    def _shared_states(self, rows: RolloutRows, position_BT: Tensor) -> Tensor:
        """The states [B, T, D] that predict the completion tokens, from one pass per distinct prompt.

        Prompts stand at the right end of their rows [U, L], so that completions follow all of them at
        the same column; the state of a prompt's last token predicts the first completion token.
        """
        device = rows.token_BL.device
        _, first_row_U, prompt_B = np.unique(rows.prompt_index_B, return_index=True, return_inverse=True)
        length_U = torch.from_numpy(rows.num_prompt_tokens_B[first_row_U]).to(device)
        prompt_index_B = torch.from_numpy(prompt_B).to(device)
        longest = int(rows.num_prompt_tokens_B.max())
        column_UL = torch.arange(longest, device=device) - (longest - length_U[:, None])
        is_token_UL = column_UL >= 0
        column_UL = column_UL.clamp(min=0)
        token_UL = rows.token_BL[torch.from_numpy(first_row_U).to(device)].gather(1, column_UL)
        is_padded = not bool(is_token_UL.all())

        cache = DynamicCache(config=self.model.config)
        prompt_state_ULD = self._base(
            input_ids=token_UL,
            attention_mask=is_token_UL.long() if is_padded else None,
            position_ids=column_UL if is_padded else column_UL[:1],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        last_BD: Tensor = prompt_state_ULD[:, -1][prompt_index_B]
        num_tokens = position_BT.shape[1]
        if num_tokens == 1:
            return last_BD[:, None]
        cache.batch_select_indices(prompt_index_B)
        # Padding behind a long prompt must not stand beyond the model's context.
        column_BT = position_BT[:, 1:].clamp(max=rows.token_BL.shape[1] - 1)
        token_BT = rows.token_BL.gather(1, column_BT)
        mask_BK = None
        if is_padded:
            mask_BK = torch.cat([is_token_UL[prompt_index_B], torch.ones_like(token_BT, dtype=torch.bool)], 1)
        completion_state_BTD = self._base(
            input_ids=token_BT,
            attention_mask=None if mask_BK is None else mask_BK.long(),
            position_ids=column_BT,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return torch.cat([last_BD[:, None], completion_state_BTD], dim=1)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.autocast_dtype is None:
            return nullcontext()
        device_type = next(self.model.parameters()).device.type
        return torch.autocast(device_type, dtype=self.autocast_dtype)


def _predicting_positions(rows: RolloutRows) -> Tensor:
    """For each completion token [B, T], the column of `token_BL` whose output predicts it."""
    first_B = torch.from_numpy(rows.num_prompt_tokens_B - 1).to(rows.token_BL.device)
    offset_T = torch.arange(rows.batch.mask_BT.shape[1], device=first_B.device)
    return first_B[:, None] + offset_T


def selected_logprobs(
    logits_NV: Tensor, token_N: Tensor, *, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits) at the given tokens [N], and the distribution's entropy [N] in nats.

    The entropy carries a gradient only for `"gradient"`.
    """
    logprob_NV = logits_NV.log_softmax(dim=-1)
    logprob_N = logprob_NV.gather(1, token_N[:, None])[:, 0]
    if entropy == "none":
        return logprob_N, None
    with nullcontext() if entropy == "gradient" else torch.no_grad():
        entropy_N = -(logprob_NV.exp() * logprob_NV).sum(dim=-1)
    return logprob_N, entropy_N


def _spread(value_N: Tensor, mask_BT: Tensor) -> Tensor:
    """The values of unmasked tokens at their places [B, T], 0 elsewhere."""
    return value_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, value_N)
