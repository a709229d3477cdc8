"""Log-probabilities and entropies from slices of the vocabulary, by Triton kernels.

Logits of all tokens exist for one slice of the vocabulary at a time. The matrix products are torch's. One
kernel adds a slice to the running softmax of each token (Milakov and Gimelshein, arXiv:1805.02867), and
another replaces a slice by its gradient. Each reads a logit once and computes in float32. No kernel adds
atomically, so that equal inputs give equal results.

If triton is imported with TRITON_INTERPRET=1, its interpreter runs the kernels on a CPU.

Axes: M tokens, D width of the model, V vocabulary, W logits of a slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from atrium.train.update.head_products import head_product, unrounded_product

_SLICE_NUMBERS = 1 << 27
"""Number of logits in a slice: a quarter of a gigabyte in bfloat16."""
_SLICE_STEP = 256
"""Widths of slices are multiples of this, for aligned rows."""
_NUM_ROWS, _MAX_BLOCK = 4, 2048
"""Tokens per program, and the maximum number of logits per token that a program loads at a time."""


class SlicedLogprobs(torch.autograd.Function):
    """Log-probabilities and entropies [M]. The backward pass computes the logits again."""

    @staticmethod
    def forward(
        ctx: Any, state_MD: Tensor, weight_VD: Tensor, token_M: Tensor, temperature: float, exact: bool
    ) -> tuple[Tensor, Tensor]:
        most_M = torch.full(token_M.shape, float("-inf"), device=token_M.device)
        # Of p = exp(logit - most): the sum of p, and the sum of p (logit - most).
        total_M, product_M, chosen_M = (torch.zeros_like(most_M) for _ in range(3))
        for part in _slices(len(token_M), len(weight_VD)):
            logits_MW = head_product(state_MD, weight_VD[part], exact=exact)
            _add_statistics[(triton.cdiv(len(token_M), _NUM_ROWS),)](
                logits_MW, token_M, most_M, total_M, product_M, chosen_M,
                part.start, *logits_MW.shape, temperature, ROWS=_NUM_ROWS, BLOCK=_block(logits_MW),
            )  # fmt: skip
            del logits_MW  # before those of the next slice
        log_total_M = total_M.log()
        entropy_M = log_total_M - product_M / total_M
        ctx.save_for_backward(state_MD, weight_VD, token_M, most_M + log_total_M, entropy_M)
        ctx.temperature, ctx.exact = temperature, exact
        ctx.set_materialize_grads(False)
        return chosen_M - most_M - log_total_M, entropy_M

    @staticmethod
    def backward(
        ctx: Any, logprob_gradient_M: Tensor | None, entropy_gradient_M: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        state_MD, weight_VD, token_M, log_sum_M, entropy_M = ctx.saved_tensors
        if logprob_gradient_M is None:
            logprob_gradient_M = torch.zeros_like(log_sum_M)
        slope_M = (logprob_gradient_M / ctx.temperature).contiguous()
        has_rise = entropy_gradient_M is not None
        rise_M = (entropy_gradient_M / ctx.temperature).contiguous() if has_rise else slope_M
        state_gradient_MD = torch.zeros_like(state_MD, dtype=log_sum_M.dtype)
        # A head that is not trained needs no product.
        weight_gradient_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        for part in _slices(len(token_M), len(weight_VD)):
            logits_MW = head_product(state_MD, weight_VD[part], exact=ctx.exact)
            is_same = logits_MW.dtype == state_MD.dtype
            gradient_MW = logits_MW if is_same else torch.empty_like(logits_MW, dtype=state_MD.dtype)
            block = _block(logits_MW)
            grid = triton.cdiv(len(token_M), _NUM_ROWS), triton.cdiv(logits_MW.shape[1], block)
            _set_gradients[grid](
                gradient_MW, logits_MW, token_M, log_sum_M, entropy_M, slope_M, rise_M,
                part.start, *logits_MW.shape, ctx.temperature, HAS_RISE=has_rise, ROWS=_NUM_ROWS, BLOCK=block,
            )  # fmt: skip
            state_gradient_MD += unrounded_product(gradient_MW, weight_VD[part], log_sum_M.dtype)
            if weight_gradient_VD is not None:
                torch.mm(gradient_MW.t(), state_MD, out=weight_gradient_VD[part])
            del logits_MW, gradient_MW
        return state_gradient_MD.to(state_MD.dtype), weight_gradient_VD, None, None, None


def _slices(num_tokens: int, vocabulary_size: int) -> Iterator[slice]:
    width = max(1, _SLICE_NUMBERS // max(1, num_tokens) // _SLICE_STEP) * _SLICE_STEP
    for start in range(0, vocabulary_size, width):
        yield slice(start, min(start + width, vocabulary_size))


def _block(logits_MW: Tensor) -> int:
    return min(_MAX_BLOCK, int(triton.next_power_of_2(logits_MW.shape[1])))


@triton.jit
def _add_statistics(
    logits, token, most_place, total_place, product_place, chosen_place,
    first, num_rows, width, temperature, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add a slice of the vocabulary, which begins at logit `first`, to the running softmax of a few tokens.

    For each token, `most` is the maximum m of the logits so far, `total` the sum of p = exp(logit - m),
    `product` the sum of p (logit - m), and `chosen` the logit of the token itself.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    most = tl.load(most_place + row, mask=is_row, other=0.0)
    total = tl.load(total_place + row, mask=is_row, other=0.0)
    product = tl.load(product_place + row, mask=is_row, other=0.0)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        is_logit = is_row[:, None] & (column < width)[None, :]
        logit = tl.load(logits + row[:, None] * width + column[None, :], mask=is_logit, other=0.0)
        logit = logit.to(tl.float32) / temperature
        highest = tl.maximum(most, tl.max(tl.where(is_logit, logit, most[:, None]), axis=1))
        # There is nothing to rescale yet where the highest logit so far is -inf.
        shift = tl.where(total > 0.0, most - highest, 0.0)
        below = tl.where(is_logit, logit - highest[:, None], 0.0)
        share = tl.where(is_logit, tl.exp(below), 0.0)
        shrink = tl.exp(shift)
        product = shrink * (product + shift * total) + tl.sum(share * below, axis=1)
        total = shrink * total + tl.sum(share, axis=1)
        most = highest
    tl.store(most_place + row, most, mask=is_row)
    tl.store(total_place + row, total, mask=is_row)
    tl.store(product_place + row, product, mask=is_row)
    place = tl.load(token + row, mask=is_row, other=0) - first
    is_here = is_row & (place >= 0) & (place < width)
    chosen = tl.load(logits + row * width + place, mask=is_here, other=0.0).to(tl.float32)
    tl.store(chosen_place + row, chosen / temperature, mask=is_here)


@triton.jit
def _set_gradients(
    gradients, logits, token, log_sum_place, entropy_place, slope_place, rise_place,
    first, num_rows, width, temperature,
    HAS_RISE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a few tokens' logits in a slice of the vocabulary, which begins at `first`.

    `slope` and `rise` are the loss's gradients with respect to the log-probabilities and the entropies,
    divided by the temperature.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < num_rows
    is_logit = is_row[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    logit = tl.load(logits + place, mask=is_logit, other=0.0).to(tl.float32) / temperature
    logprob = logit - tl.load(log_sum_place + row, mask=is_row, other=0.0)[:, None]
    slope = tl.load(slope_place + row, mask=is_row, other=0.0)
    factor = -slope[:, None]
    if HAS_RISE:
        # d entropy / d logit is -p (log p + entropy).
        rise = tl.load(rise_place + row, mask=is_row, other=0.0)
        entropy = tl.load(entropy_place + row, mask=is_row, other=0.0)
        factor -= rise[:, None] * (logprob + entropy[:, None])
    gradient = tl.where(is_logit, tl.exp(logprob), 0.0) * factor
    is_chosen = column[None, :] == (tl.load(token + row, mask=is_row, other=0) - first)[:, None]
    tl.store(gradients + place, gradient + tl.where(is_chosen, slope[:, None], 0.0), mask=is_logit)
