"""Drawing for transformers' continuous batching: each sample by its own seed, its log-probabilities kept.

The library draws every token of a batch from one generator, so a sample would depend on its neighbours. It
lets a processor change the scores of the tokens that are next; the one here draws there and then, by the rule
of the transformers engine, keeps the log-probability of what it drew, and leaves the library one token to
choose.

Axes: R samples, N rows of a step, V vocabulary, C cells, one for each token that a sample may get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.requests import FutureRequestState
from transformers.generation.logits_process import LogitsProcessorList

from atrium.errors import EngineError
from atrium.records import Logprobs
from atrium.rollout.engine import SamplingParams
from atrium.rollout.sampling import sample_keys, sample_tokens, uniforms_at

_MAX_CELLS = 2**31 - 1


class SeededDraw(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Draws the next token of each request from `sampling`'s distribution, keyed by its sample's seed.

    A request names its sample by the argument `sample`, its place in `seeds`.

    Parameters
    ----------
    seeds
        One per sample.
    prompt_lengths
        The number of tokens before each sample's completion.
    max_rows
        The most requests of one step.
    """

    supported_kwargs: ClassVar[dict[str, type]] = {"sample": int}
    ignored_kwargs: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        seeds: Sequence[int],
        prompt_lengths: Sequence[int],
        sampling: SamplingParams,
        stop_token_ids: Sequence[int],
        max_rows: int,
        device: torch.device,
    ) -> None:
        self._num_cells = len(seeds) * sampling.max_new_tokens
        if self._num_cells > _MAX_CELLS:
            raise EngineError(
                f"{len(seeds)} completions of up to {sampling.max_new_tokens} tokens are too many for one "
                f"batch of rollout=transformers_paged, which counts to {_MAX_CELLS} tokens; ask for fewer"
            )
        self._prompt_lengths = prompt_lengths
        self._sampling = sampling
        self._max_rows = max_rows
        self._stop_S = torch.tensor(stop_token_ids, dtype=torch.int64, device=device)
        # One more sample with one cell, for the rows of a step that predict no new token.
        self._key_R = sample_keys([*seeds, 0], device)
        self._logprob_C = torch.full((self._num_cells + 1,), torch.nan, device=device)

    def processors(self) -> ContinuousBatchingLogitsProcessorList:
        """The list that a manager takes, with this processor alone."""
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self]))
        processors.tensors_required = 1
        return processors

    def logprobs(self, sample: int, num_tokens: int) -> Logprobs:
        """The log-probabilities of a finished sample's tokens."""
        start = sample * self._sampling.max_new_tokens
        found: Logprobs = self._logprob_C[start : start + num_tokens].cpu().numpy().astype(np.float32)
        return found

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Point at the cell that nobody reads."""
        int32_tensor.fill_(self._num_cells)

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> Tensor:
        """The cell of each row's next token, int32 [max_rows]; rows without one point where nobody reads."""
        cell_N = torch.full((self._max_rows,), self._num_cells, dtype=torch.int32)
        cells = []
        for request in requests_with_new_token:
            state = request.state
            sample = state.logit_processor_kwargs["sample"]
            # Counted from the tokens in the cache: right for a request that was put off and begun again too.
            position = state.position_offset - self._prompt_lengths[sample]
            cells.append(sample * self._sampling.max_new_tokens + position)
        cell_N[: len(cells)] = torch.tensor(cells, dtype=torch.int32)
        return cell_N

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Scores [N, V] that are 0 at the drawn token and minus infinity elsewhere."""
        cell_N = tensor_arg[: scores.shape[0]].to(torch.int64)
        length = self._sampling.max_new_tokens
        uniform_N = uniforms_at(self._key_R[cell_N // length], cell_N % length)
        token_N, logprob_N = sample_tokens(scores, uniform_N, sampling=self._sampling, stop_S=self._stop_S)
        self._logprob_C[cell_N] = logprob_N
        return torch.full_like(scores, -torch.inf).scatter_(-1, token_N.unsqueeze(-1), 0.0)
