"""Selection of tokens in a minibatch, by value or at random.

The selection does not depend on the split over ranks, the order of rows, or padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atrium.method.batch import Sum, neutral

INCREMENT = 0x9E3779B97F4A7C15
"""Increment of SplitMix64's state at each draw."""
_BITS = 16
_SIGN = -(2**63)


def largest(value_BT: Tensor, mask_BT: Tensor, count: Tensor, sum_over_ranks: Sum) -> Tensor:
    """Return a mask [B, T] of the `count` largest unmasked values across all ranks.

    Values equal to the smallest of these are also selected.
    """
    above_BT, tied_BT, _ = _ranked(value_BT, mask_BT, count, sum_over_ranks)
    return above_BT | tied_BT


def exactly_largest(
    value_BT: Tensor, mask_BT: Tensor, count: Tensor, draw_BT: Tensor, sum_over_ranks: Sum
) -> Tensor:
    """Return a mask [B, T] of exactly the `count` largest unmasked values across all ranks.

    Among equal values, those with the largest `draw_BT` are selected.
    """
    above_BT, tied_BT, remaining = _ranked(value_BT, mask_BT, count, sum_over_ranks)
    return above_BT | largest(draw_BT, tied_BT, remaining, sum_over_ranks)


def _ranked(
    value_BT: Tensor, mask_BT: Tensor, count: Tensor, sum_over_ranks: Sum
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the `count`-th largest unmasked value across all ranks.

    Returns a mask of larger values, a mask of equal values, and the number of equal values to select. This is
    a radix search over the bits of the values: in each round, every rank counts its remaining candidates by
    their next 16 bits. Ranks exchange only these counts.
    """
    key_BT = _ordered_key(value_BT)
    key_N, candidate_N = key_BT.flatten(), mask_BT.flatten()
    prefix = torch.zeros((), dtype=torch.int64, device=value_BT.device)
    remaining = count.double()
    for shift in range(64 - _BITS, -1, -_BITS):
        digit_N = (key_N >> shift) & (2**_BITS - 1)
        # Whole numbers add up exactly in any order; `bincount` would make the host wait for a GPU.
        histogram = count.new_zeros(2**_BITS, dtype=torch.float64)
        histogram.index_add_(0, digit_N, candidate_N.double())
        at_least = sum_over_ranks(histogram).flip(0).cumsum(0).flip(0)
        digit = (at_least >= remaining).sum().clamp(min=1) - 1
        above = torch.cat([at_least, at_least.new_zeros(1)])[digit + 1]
        remaining = remaining - above
        candidate_N = candidate_N & (digit_N == digit)
        prefix = prefix | (digit << shift)
    return mask_BT & ((key_BT ^ _SIGN) > (prefix ^ _SIGN)), mask_BT & (key_BT == prefix), remaining


def uniform(sample_key_B: Tensor, num_tokens: int, purpose: int) -> Tensor:
    """Return random numbers [B, T] in [0, 1) that depend only on row key, token index and purpose."""
    position_T = torch.arange(num_tokens, dtype=torch.int64, device=sample_key_B.device)
    row_B1 = _mixed(_mixed(sample_key_B.to(torch.int64))[:, None] + purpose)
    return ((_mixed(row_B1 + position_T) >> 11) & (2**53 - 1)).double() / 2**53


def keyed_anew(sample_key_B: Tensor, occasion: int) -> Tensor:
    """Return a new random key [B] for each row, derived from the row's key and `occasion`.

    Different values of `occasion` give independent keys.
    """
    return _mixed(_mixed(sample_key_B.to(torch.int64)) + occasion)


def token_mean(value_BT: Tensor, mask_BT: Tensor, sum_over_ranks: Sum) -> tuple[Tensor, Tensor]:
    """Return the mean over all ranks' unmasked tokens, and their number."""
    total = neutral(value_BT, mask_BT).double().sum()
    total, count = sum_over_ranks(torch.stack([total, mask_BT.sum().double()]))
    return total / count.clamp(min=1.0), count


def _ordered_key(value_BT: Tensor) -> Tensor:
    """Return 64-bit integers whose unsigned order is the order of the values (0 and -0 are equal)."""
    bits_BT = (value_BT.double() + 0.0).view(torch.int64)
    return torch.where(bits_BT < 0, ~bits_BT, bits_BT ^ _SIGN)


def mix(word: Tensor) -> Tensor:
    """Apply the output function of SplitMix64, a bijection of 64-bit words stored as int64.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    word = (word ^ shift_right(word, 30)) * signed(0xBF58476D1CE4E5B9)
    word = (word ^ shift_right(word, 27)) * signed(0x94D049BB133111EB)
    return word ^ shift_right(word, 31)


def shift_right(word: Tensor, num_bits: int) -> Tensor:
    """Shift int64 words right by `num_bits` and fill with zeros, where torch would copy the sign bit."""
    return (word >> num_bits) & ((1 << (64 - num_bits)) - 1)


def signed(word: int) -> int:
    """Return `word` modulo 2^64 as the int64 with the same bits."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


def _mixed(word: Tensor) -> Tensor:
    """Return SplitMix64's output for the generator state that follows the state `word`."""
    return mix(word + signed(INCREMENT))
