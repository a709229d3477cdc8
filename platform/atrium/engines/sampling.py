"""Sampling of tokens from logits, with randomness that depends only on sample seed and position.

The functions are pure and work on any device, without a model and without the state of a random generator. A
sample's seed and a position are hashed to a uniform number, and the token is the value of the inverse
cumulative distribution function at this number. Batching, order and other samples cannot change the token.

Axes: N rows, T positions, V vocabulary, S stop tokens.

The hash is the output function and increment of SplitMix64; see `atrium.method.selection`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from atrium.base.errors import EngineError
from atrium.base.records import TokenIds
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.method.selection import INCREMENT, mix, shift_right, signed

# Drawing needs several float64 copies of the distributions, so larger inputs are split by rows.
_MAX_ELEMENTS = 1 << 25


def check_requests(
    requests: Sequence[GenerationRequest], sampling: SamplingParams, *, context_length: int
) -> None:
    """Raise `EngineError` for a prompt that is empty or too long.

    A prompt and `sampling.max_new_tokens` must fit into `context_length` tokens together.
    """
    for index, request in enumerate(requests):
        num_tokens = len(request.prompt_token_ids)
        if num_tokens == 0:
            raise EngineError(f"the prompt of request {index} must have at least one token, got none")
        if num_tokens + sampling.max_new_tokens > context_length:
            raise EngineError(
                f"the prompt of request {index} has {num_tokens} tokens, so "
                f"max_new_tokens={sampling.max_new_tokens} does not fit the context of {context_length}; "
                "lower max_new_tokens or remove longer prompts"
            )


def check_version(begun: int, now: int) -> None:
    """Raise `EngineError` if the weights' version has changed during sampling, from `begun` to `now`."""
    if now != begun:
        raise EngineError(
            f"the weights changed from version {begun} to {now} during sampling; read all completions "
            "before updating the weights"
        )


def sample_keys(seeds: Sequence[int], device: torch.device | str) -> Tensor:
    """Return a hash state, int64 [N], for each sample seed (any integer, taken modulo 2**64)."""
    words = torch.tensor([signed(seed) for seed in seeds], dtype=torch.int64, device=device)
    return mix(words)


def uniforms(key_N: Tensor, positions: range) -> Tensor:
    """Return numbers in [0, 1), float64 [T, N], that depend only on each row's key and the position.

    The numbers are multiples of 2**-53. Positions count a completion's tokens from 0.
    """
    steps = [signed((position + 1) * INCREMENT) for position in positions]
    step_T1 = torch.tensor(steps, dtype=torch.int64, device=key_N.device).unsqueeze(-1)
    return shift_right(mix(key_N + step_T1), 11).to(torch.float64) * 2.0**-53


class Occurrences:
    """Occurrences of tokens in prompts and completions, for penalties.

    For each row and token [N, V], an object stores whether the token occurs in the row's prompt, and how
    often it occurs in the row's completion.
    """

    def __init__(self, prompts: Sequence[TokenIds], like_NV: Tensor) -> None:
        self._in_prompt_NV = torch.zeros_like(like_NV, dtype=torch.bool)
        self._count_NV = torch.zeros_like(like_NV, dtype=torch.int32)
        for row, prompt in enumerate(prompts):
            self._in_prompt_NV[row, torch.from_numpy(prompt).long().to(like_NV.device)] = True

    def add(self, token_N: Tensor) -> None:
        """Count the next token of each row's completion."""
        self._count_NV[torch.arange(len(token_N), device=token_N.device), token_N] += 1

    def select(self, keep_N: Tensor) -> None:
        """Keep only the rows with the indices `keep_N`."""
        self._in_prompt_NV, self._count_NV = self._in_prompt_NV[keep_N], self._count_NV[keep_N]

    def penalized(self, logits_NV: Tensor, sampling: SamplingParams) -> Tensor:
        """Return the logits, float32 [N, V], with the penalties of `SamplingParams` applied."""
        occurred_NV = self._count_NV > 0
        logits_NV = logits_NV.float()
        factor = sampling.repetition_penalty
        repeated_NV = torch.where(logits_NV > 0, logits_NV / factor, logits_NV * factor)
        logits_NV = torch.where(occurred_NV | self._in_prompt_NV, repeated_NV, logits_NV)
        logits_NV = logits_NV - sampling.frequency_penalty * self._count_NV
        return logits_NV - sampling.presence_penalty * occurred_NV


def log_distribution(logits_NV: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the log-probabilities float32 [N, V] of the sampled distribution.

    The distribution is softmax(logits / temperature), truncated in vLLM's order and renormalized. First, it
    is truncated to the tokens that are at least `min_p` times as likely as the likeliest (arXiv 2407.01082).
    Then it is truncated to the `top_k` likeliest, including ties with the last. Finally, it is truncated to
    the smallest set of likeliest tokens whose share of the remaining probability is at least `top_p`.
    Excluded tokens have -inf. With temperature 0, the result is the whole distribution at temperature 1.
    """
    scores_NV = logits_NV.float()
    if sampling.temperature == 0:
        return scores_NV.log_softmax(-1)
    if sampling.temperature != 1:
        # Relative to the maximum, so that a small temperature cannot overflow the largest score.
        scores_NV = (scores_NV - scores_NV.amax(-1, keepdim=True)) / sampling.temperature
    if sampling.min_p > 0:
        least_N1 = scores_NV.amax(-1, keepdim=True) + math.log(sampling.min_p)
        scores_NV = scores_NV.masked_fill(scores_NV < least_N1, -torch.inf)
    if sampling.top_k is not None and sampling.top_k < scores_NV.shape[-1]:
        last_N1 = scores_NV.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores_NV = scores_NV.masked_fill(scores_NV < last_N1, -torch.inf)
    if sampling.top_p < 1:
        ordered_NV, token_NV = scores_NV.sort(dim=-1, descending=True, stable=True)
        mass_NV = ordered_NV.softmax(-1, dtype=torch.float64)
        is_cut_NV = mass_NV.cumsum(-1) - mass_NV >= sampling.top_p
        is_cut_NV[:, 0] = False
        scores_NV = scores_NV.masked_fill(
            torch.zeros_like(is_cut_NV).scatter(-1, token_NV, is_cut_NV), -torch.inf
        )
    return scores_NV.log_softmax(-1)


def draw(logprob_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """Return the token int64 [N] at which the cumulative distribution first exceeds a threshold.

    The threshold is `uniform_N` times the sum of all probabilities, which may differ from 1 by rounding. A
    token of probability 0 is never drawn: its cumulative sum equals its predecessor's, and the threshold is
    less than the sum because a uniform number is at most 1 - 2**-53. The token of a row with NaN is
    arbitrary.
    """
    cumulative_NV = logprob_NV.exp().cumsum(-1, dtype=torch.float64)
    # Scaled by the total, because float32 probabilities sum to 1 only up to rounding.
    threshold_N1 = (uniform_N * cumulative_NV[:, -1]).unsqueeze(-1)
    token_N1 = torch.searchsorted(cumulative_NV, threshold_N1, right=True)
    return token_N1.squeeze(-1).clamp_(max=logprob_NV.shape[-1] - 1)


def sample_tokens(
    logits_NV: Tensor, uniform_N: Tensor, *, sampling: SamplingParams, stop_S: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the next token int64 [N] of every row, and its log-probability float32 [N].

    With `ignore_stop`, the tokens `stop_S` have probability 0. The log-probability is NaN in rows in which a
    logit is NaN or +inf, or all logits are -inf; callers must check for NaN. Single logits of -inf are valid
    and give probability 0.
    """
    num_rows, vocabulary_size = logits_NV.shape
    chunk = max(1, _MAX_ELEMENTS // vocabulary_size)
    if num_rows <= chunk:
        return _sample(logits_NV, uniform_N, sampling, stop_S)
    parts = [
        _sample(logits, uniform, sampling, stop_S)
        for logits, uniform in zip(logits_NV.split(chunk), uniform_N.split(chunk), strict=True)
    ]
    return torch.cat([token for token, _ in parts]), torch.cat([logprob for _, logprob in parts])


def _sample(
    logits_NV: Tensor, uniform_N: Tensor, sampling: SamplingParams, stop_S: Tensor
) -> tuple[Tensor, Tensor]:
    if sampling.ignore_stop:
        logits_NV = logits_NV.index_fill(-1, stop_S, -torch.inf)
    logprob_NV = log_distribution(logits_NV, sampling)
    is_greedy = sampling.temperature == 0
    token_N = logprob_NV.argmax(-1) if is_greedy else draw(logprob_NV, uniform_N)
    return token_N, logprob_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1)
