"""Log-probabilities and entropies of chosen tokens from hidden states, without all logits in memory.

Logits exist for one chunk of tokens at a time. If there is a single chunk, it is kept for the backward pass.
Several chunks are recomputed there, so that memory does not grow with the number of tokens times the size of
the vocabulary. The gradient overwrites the logits. Log-softmax is computed in float32 or more, whatever the
model's dtype. `sliced_logprobs` divides the vocabulary instead of the tokens.

Axes: M tokens, D width of the model, V vocabulary.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from atrium.base.errors import ConfigError, MissingDependencyError, install_command
from atrium.train.update.head_products import head_product

Entropy = Literal["none", "value", "gradient"]
HeadKernel = Literal["torch", "triton"]

_CHUNK_NUMBERS = 1 << 27
"""Number of logits in a chunk: half a gigabyte in float32."""

_BLOCK_NUMBERS = {"cpu": 1 << 19, "cuda": 1 << 25}
"""Number of logits processed together: as many as fit into a processor's cache; not measured for a GPU."""


def token_logprobs(
    head: nn.Module,
    state_MD: Tensor,
    token_M: Tensor,
    *,
    temperature: float,
    entropy: Entropy,
    float32_logits: bool = False,
    kernel: HeadKernel = "torch",
) -> tuple[Tensor, Tensor | None]:
    """Return log softmax(head(state) / temperature) at the tokens [M], and that distribution's entropy [M].

    The entropy is in nats. It has a gradient only if `entropy` is `"gradient"`, and is None if `entropy` is
    `"none"`. With `float32_logits`, logits are not rounded to the dtype of states and weights, as in vLLM
    with a float32 head; the gradient of the logits is still rounded. The kernel `triton` computes slices of
    the vocabulary by Triton's kernels, except for a head that is not a plain linear map.
    """
    weight_VD = head.get_parameter("weight")
    is_plain = type(head) is nn.Linear and getattr(head, "bias", None) is None
    device_type = state_MD.device.type
    if not is_plain:
        wide = {name: one.float() for name, one in head.named_parameters()} if float32_logits else {}
        with torch.autocast(device_type, enabled=False) if float32_logits else nullcontext():
            state_MD = state_MD.float() if float32_logits else state_MD
            logits_MV = tempered_logits(partial(functional_call, head, wide), state_MD, temperature)
        return selected_logprobs(logits_MV, token_M, entropy=entropy)
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        state_MD = state_MD.to(dtype)
    with torch.autocast(device_type, enabled=False):  # autocast would round the entropies' scalar products
        logprob_M, entropy_M = _function(kernel).apply(
            state_MD, weight_VD.to(state_MD.dtype), token_M, temperature, float32_logits
        )
    if entropy == "none":
        return logprob_M, None
    return logprob_M, entropy_M if entropy == "gradient" else entropy_M.detach()


def check_triton(device_type: str) -> None:
    """Raise an error if Triton's kernels cannot run on the device.

    Raises `MissingDependencyError` if triton is not installed, and `ConfigError` if there is neither a GPU
    nor Triton's interpreter.
    """
    if importlib.util.find_spec("triton") is None:
        raise MissingDependencyError(
            "compute.head_kernel=triton requires triton, which torch includes in its builds for GPUs; "
            f"use compute.head_kernel=torch, or run {install_command('kernels')} for Triton's interpreter"
        )
    if device_type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            f"compute.head_kernel=triton requires a GPU, but compute.device={device_type}; use "
            "compute.head_kernel=torch, or set TRITON_INTERPRET=1 in the environment for the slow "
            "interpreter"
        )


def _function(kernel: HeadKernel) -> type[torch.autograd.Function]:
    if kernel == "torch":
        return _ChunkedLogprobs
    from atrium.train.update.sliced_logprobs import SlicedLogprobs  # triton comes with torch for GPUs only

    return SlicedLogprobs


def tempered_logits(head: Callable[[Tensor], Tensor], state_MD: Tensor, temperature: float) -> Tensor:
    """Return the head's logits [M, V] divided by the temperature, in float32 or more."""
    logits_MV = head(state_MD)
    logits_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))
    return logits_MV if temperature == 1.0 else logits_MV / temperature


def selected_logprobs(
    logits_MV: Tensor, token_M: Tensor, *, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """Return the log-probabilities [M] of the tokens and the entropies [M], from full logits [M, V].

    Used for heads that are not plain linear maps, and by tests as the reference for the fused computation.
    """
    logprob_MV = logits_MV.log_softmax(dim=-1)
    logprob_M = logprob_MV.gather(1, token_M[:, None])[:, 0]
    if entropy == "none":
        return logprob_M, None
    with nullcontext() if entropy == "gradient" else torch.no_grad():
        entropy_M = -(logprob_MV.exp() * logprob_MV).sum(dim=-1)
    return logprob_M, entropy_M


class _ChunkedLogprobs(torch.autograd.Function):
    """Log-probabilities and entropies [M], from logits that are overwritten by their own gradient.

    If there is a single chunk of logits, it is kept for the backward pass. Several chunks are recomputed.
    """

    @staticmethod
    def forward(
        ctx: Any, state_MD: Tensor, weight_VD: Tensor, token_M: Tensor, temperature: float, exact: bool
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(state_MD.dtype, torch.float32)
        logprob_M, entropy_M, log_sum_M = (token_M.new_empty(len(token_M), dtype=dtype) for _ in range(3))
        chunks = _chunks(len(token_M), len(weight_VD))
        is_kept, kept = len(chunks) == 1, []
        for chunk in chunks:
            logits = _logits(state_MD[chunk], weight_VD, temperature, dtype, exact)
            for part, block in _blocks(chunk, logits):
                most = block.amax(-1, keepdim=True)
                share = block.sub_(most).exp()
                total = share.sum(-1)
                log_total = total.log()
                logprob_M[part] = block.gather(1, token_M[part, None])[:, 0] - log_total
                entropy_M[part] = log_total - torch.linalg.vecdot(share, block) / total
                # Kept logits are relative to the maximum from here on.
                log_sum_M[part] = log_total if is_kept else log_total + most[:, 0]
            if is_kept:
                kept.append(logits)
            del logits, block, share  # free them before the next chunk's logits are computed
        ctx.save_for_backward(state_MD, weight_VD, token_M, log_sum_M, entropy_M, *kept)
        ctx.temperature, ctx.exact = temperature, exact
        ctx.set_materialize_grads(False)
        return logprob_M, entropy_M

    @staticmethod
    def backward(
        ctx: Any, logprob_gradient_M: Tensor | None, entropy_gradient_M: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        state_MD, weight_VD, token_M, log_sum_M, entropy_M, *kept = ctx.saved_tensors
        if logprob_gradient_M is None:
            logprob_gradient_M = torch.zeros_like(log_sum_M)
        slope_M = logprob_gradient_M / ctx.temperature
        state_gradient_MD = torch.empty_like(state_MD)
        weight_gradient_VD = None
        for chunk in _chunks(len(token_M), len(weight_VD)):
            if kept:
                (logits,) = kept
            else:
                logits = _logits(state_MD[chunk], weight_VD, ctx.temperature, log_sum_M.dtype, ctx.exact)
            for part, block in _blocks(chunk, logits):
                block.sub_(log_sum_M[part, None])
                if entropy_gradient_M is None:
                    block.exp_().mul_(-slope_M[part, None])
                else:
                    # d entropy / d logit is -p (log p + entropy).
                    share, rise = block.exp(), entropy_gradient_M[part, None] / ctx.temperature
                    block.add_(entropy_M[part, None]).mul_(-rise).sub_(slope_M[part, None]).mul_(share)
                block.scatter_add_(1, token_M[part, None], slope_M[part, None])
            gradient = logits.to(state_MD.dtype)
            torch.mm(gradient, weight_VD, out=state_gradient_MD[chunk])
            if ctx.needs_input_grad[1]:  # a head that is not trained needs no product
                product_VD = gradient.t() @ state_MD[chunk]
                if weight_gradient_VD is None:
                    weight_gradient_VD = product_VD.to(log_sum_M.dtype)
                else:
                    weight_gradient_VD += product_VD
            del logits, block, gradient
        head_gradient_VD = None if weight_gradient_VD is None else weight_gradient_VD.to(weight_VD.dtype)
        return state_gradient_MD, head_gradient_VD, None, None, None


def _logits(state: Tensor, weight_VD: Tensor, temperature: float, dtype: torch.dtype, exact: bool) -> Tensor:
    logits = head_product(state, weight_VD, exact=exact).to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _chunks(num_tokens: int, num_logits_per_token: int) -> list[slice]:
    return _parts(slice(0, num_tokens), _CHUNK_NUMBERS // num_logits_per_token)


def _blocks(chunk: slice, logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield a chunk's token positions and logits in blocks that fit into a processor's cache."""
    for part in _parts(chunk, _BLOCK_NUMBERS[logits.device.type] // logits.shape[1]):
        yield part, logits[part.start - chunk.start : part.stop - chunk.start]


def _parts(whole: slice, size: int) -> list[slice]:
    """Divide `whole` into consecutive slices of at most max(1, `size`) elements."""
    starts = range(whole.start, whole.stop, max(1, size))
    return [slice(start, min(start + starts.step, whole.stop)) for start in starts]
