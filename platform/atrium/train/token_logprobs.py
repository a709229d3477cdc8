"""Log-probabilities and entropies of chosen tokens from the last states, without all logits in memory.

Where logits are few they are computed at once; where they are many, chunk by chunk, and again in the
backward pass, so that memory does not grow with the number of tokens times the vocabulary. Log-softmax is at
least float32, whatever the model computes in.

Axes: M tokens, D width of the model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

Entropy = Literal["none", "value", "gradient"]

_WHOLE_NUMBERS = 1 << 24
"""Up to this many logits are computed at once."""

_CHUNK_NUMBERS = 1 << 27
"""Logits per chunk beyond that: half a gigabyte in float32."""


def token_logprobs(
    head: nn.Module, state_MD: Tensor, token_M: Tensor, *, temperature: float, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """log softmax(head(state) / temperature) at the tokens [M], and the entropy [M] of that distribution.

    The entropy, in nats, carries a gradient only for `"gradient"`, and is None for `"none"`.
    """
    weight_VD = head.get_parameter("weight")
    is_plain = type(head) is nn.Linear and getattr(head, "bias", None) is None
    if not is_plain or len(state_MD) * len(weight_VD) <= _WHOLE_NUMBERS:
        return selected_logprobs(tempered_logits(head, state_MD, temperature), token_M, entropy=entropy)
    device_type = state_MD.device.type
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        state_MD = state_MD.to(dtype)
    logprob_M, entropy_M = _ChunkedLogprobs.apply(
        state_MD, weight_VD.to(state_MD.dtype), token_M, temperature
    )
    if entropy == "none":
        return logprob_M, None
    return logprob_M, entropy_M if entropy == "gradient" else entropy_M.detach()


def tempered_logits(head: nn.Module, state_MD: Tensor, temperature: float) -> Tensor:
    """The head's logits [M, V] over the temperature, in float32 or more."""
    logits_MV: Tensor = head(state_MD)
    logits_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))
    return logits_MV if temperature == 1.0 else logits_MV / temperature


def selected_logprobs(
    logits_MV: Tensor, token_M: Tensor, *, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """`token_logprobs` from all logits: the plain form that the chunked one is tested against."""
    logprob_MV = logits_MV.log_softmax(dim=-1)
    logprob_M = logprob_MV.gather(1, token_M[:, None])[:, 0]
    if entropy == "none":
        return logprob_M, None
    with nullcontext() if entropy == "gradient" else torch.no_grad():
        entropy_M = -(logprob_MV.exp() * logprob_MV).sum(dim=-1)
    return logprob_M, entropy_M


class _ChunkedLogprobs(torch.autograd.Function):
    """Log-probabilities and entropies [M] with logits that live only within a chunk."""

    @staticmethod
    def forward(
        ctx: Any, state_MD: Tensor, weight_VD: Tensor, token_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(state_MD.dtype, torch.float32)
        logprob_M, entropy_M, log_sum_M = (token_M.new_empty(len(token_M), dtype=dtype) for _ in range(3))
        for part in _chunks(len(token_M), len(weight_VD)):
            logits = _logits(state_MD[part], weight_VD, temperature, dtype)
            log_sum_M[part] = logits.logsumexp(-1)
            logprob_M[part] = logits.gather(1, token_M[part, None])[:, 0] - log_sum_M[part]
            logprob = logits.sub_(log_sum_M[part, None])
            entropy_M[part] = -torch.linalg.vecdot(logprob.exp(), logprob)
        ctx.save_for_backward(state_MD, weight_VD, token_M, log_sum_M, entropy_M)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprob_M, entropy_M

    @staticmethod
    def backward(
        ctx: Any, logprob_gradient_M: Tensor | None, entropy_gradient_M: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None]:
        state_MD, weight_VD, token_M, log_sum_M, entropy_M = ctx.saved_tensors
        if logprob_gradient_M is None:
            logprob_gradient_M = torch.zeros_like(log_sum_M)
        state_gradient_MD = torch.empty_like(state_MD)
        weight_gradient_VD = None
        if ctx.needs_input_grad[1]:  # a head that is not trained costs no product
            weight_gradient_VD = torch.zeros_like(weight_VD, dtype=log_sum_M.dtype)
        for part in _chunks(len(token_M), len(weight_VD)):
            logprob = _logits(state_MD[part], weight_VD, ctx.temperature, log_sum_M.dtype)
            logprob.sub_(log_sum_M[part, None])
            gradient = logprob.exp()
            slope = -logprob_gradient_M[part, None]
            if entropy_gradient_M is not None:
                # d entropy / d logit is -p (log p + entropy).
                slope = slope - entropy_gradient_M[part, None] * (logprob + entropy_M[part, None])
            gradient.mul_(slope)
            gradient.scatter_add_(1, token_M[part, None], logprob_gradient_M[part, None])
            gradient = gradient.div_(ctx.temperature).to(state_MD.dtype)
            torch.mm(gradient, weight_VD, out=state_gradient_MD[part])
            if weight_gradient_VD is not None:
                weight_gradient_VD += gradient.t() @ state_MD[part]
        head_gradient_VD = None if weight_gradient_VD is None else weight_gradient_VD.to(weight_VD.dtype)
        return state_gradient_MD, head_gradient_VD, None, None


def _logits(state: Tensor, weight_VD: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    return (state @ weight_VD.t()).to(dtype).div_(temperature)


def _chunks(num_tokens: int, num_logits_per_token: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // num_logits_per_token)
    return (slice(start, start + size) for start in range(0, num_tokens, size))
