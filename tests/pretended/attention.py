"""`torch.nn.attention.varlen.varlen_attn` as a reference: what it asks for asserted, computed row by row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes


def reference_attention(
    mode, query, key, value, ends_q, ends_k, longest_q, longest_k, *, scale, window_size, enable_gqa=False
):
    """Causal attention of rows [P, H, D] that end where `ends` says, for tensors on a pretended device."""
    mode.num_attentions += 1
    for state in (query, key, value):
        assert mode.is_cuda(state)
        assert state.dtype in (torch.bfloat16, torch.float16), state.dtype
        assert state.dim() == 3
        assert state.stride(-1) == 1, state.stride()
        assert state.shape[-1] % 8 == 0
        assert state.shape[-1] <= 256
        assert all(stride % 8 == 0 for stride in state.stride()[:-1]), "rows are read 16 bytes at a time"
    assert query.dtype == key.dtype == value.dtype
    assert key.shape == value.shape
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert query.shape[1] % key.shape[1] == 0
    assert window_size == (-1, 0), "causal"
    with torch._C.DisableTorchFunction():
        for ends, longest, state in ((ends_q, longest_q, query), (ends_k, longest_k, key)):
            assert ends.dtype == torch.int32
            assert ends.is_contiguous()
            places = ends.tolist()
            lengths = [stop - start for start, stop in pairwise(places)]
            assert places[0] == 0
            assert places[-1] == len(state), "every place belongs to a row"
            assert min(lengths) > 0
            assert type(longest) is int
            assert longest == max(lengths)
    assert mode.is_cuda(ends_q)
    assert mode.is_cuda(ends_k)
    return mode.place(_Attention.apply(query, key, value, ends_q, scale))


class _Attention(torch.autograd.Function):
    """One operation, which keeps what the kernel keeps: operands, result, a sum per query and head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scale: float) -> Tensor:
        with torch._C.DisableTorchFunction():
            mixed = query.new_empty(query.shape)
            log_sum_HP = query.new_empty((query.shape[1], len(query)), dtype=torch.float32)
            with _disable_current_modes():
                mixed.copy_(_mixed(query, key, value, ends, scale))
        ctx.save_for_backward(query, key, value, ends, mixed, log_sum_HP)
        ctx.scale = scale
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, ends, _, _ = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            found = tuple(
                torch.empty_like(one, memory_format=torch.contiguous_format) for one in (query, key, value)
            )
            with _disable_current_modes(), torch.enable_grad():
                inputs = [one.detach().requires_grad_() for one in (query, key, value)]
                mixed = _mixed(*inputs, ends, ctx.scale)
                for one, slope in zip(found, torch.autograd.grad(mixed, inputs, gradient), strict=True):
                    one.copy_(slope)
        return *found, None, None


def _mixed(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scale: float) -> Tensor:
    parts = (one.split(ends.diff().tolist()) for one in (query, key, value))
    return torch.cat(
        [
            functional.scaled_dot_product_attention(
                *(one.transpose(0, 1)[None].float() for one in rows),
                is_causal=True,
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
            for rows in zip(*parts, strict=True)
        ]
    ).to(query.dtype)
