"""Histograms of a step's ratios, whose counts in fixed bins add up exactly, and quantiles of the ratios.

Bins have equal widths in asinh(log w / 1e-3): in log w, their width is constant around w = 1 and 4 % of |log
w| elsewhere. The middle bin contains log-ratios within 2e-5 of 0 and counts as a ratio of exactly 1; the
outermost bins contain all log-ratios beyond +-20. Counts are separate for each sign S of the advantage
(positive, negative, zero), since a trust region treats each sign differently. Counts stay on the device.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atrium.base.records import Floats

SIGNS = ("positive", "negative", "zero")
NUM_BINS_PER_SIDE = 256
NUM_BINS = 2 * NUM_BINS_PER_SIDE + 1
_SCALE = 1e-3
_LARGEST_LOG_RATIO = 20.0
_WIDTH = math.asinh(_LARGEST_LOG_RATIO / _SCALE) / NUM_BINS_PER_SIDE


def count_ratios(ratio_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the numbers of unmasked tokens [S, NUM_BINS] (int64) per advantage sign and per ratio bin."""
    log_ratio_BT = torch.where(mask_BT, ratio_BT, 1.0).log()
    bin_BT = torch.round(torch.asinh(log_ratio_BT / _SCALE) / _WIDTH) + NUM_BINS_PER_SIDE
    # A NaN at an unmasked token must not fail here as an index: the non-finite gradient skips the update.
    bin_BT = bin_BT.nan_to_num(nan=NUM_BINS - 1.0).clamp(0, NUM_BINS - 1).long()
    bin_BT += NUM_BINS * ((advantage_BT < 0.0).long() + 2 * (advantage_BT == 0.0).long())
    counts = torch.zeros(len(SIGNS) * NUM_BINS, dtype=torch.int64, device=ratio_BT.device)
    # Not bincount, which on an accelerator waits for the largest value.
    counts.scatter_add_(0, bin_BT.flatten(), mask_BT.flatten().long())
    return counts.view(len(SIGNS), NUM_BINS)


def log_ratio_edges() -> Floats:
    """Return the edges [NUM_BINS + 1] of the bins as values of log w, in nats (float64)."""
    place = np.arange(NUM_BINS + 1) - NUM_BINS_PER_SIDE - 0.5
    edges: Floats = _SCALE * np.sinh(place * _WIDTH)
    return edges


def ratio_quantile(counts_N: NDArray[np.int64], share: float) -> float:
    """Return the ratio below which the given share of counted tokens lies, interpolated within a bin.

    `counts_N` are the counts of all bins. The error is at most the width of one bin. Raises `ValueError` if
    all counts are 0.
    """
    below_N = np.cumsum(counts_N)
    if below_N[-1] == 0:
        raise ValueError("an empty histogram has no quantile")
    wanted = share * below_N[-1]
    place = int(np.searchsorted(below_N, max(wanted, 0.5)))
    if place == NUM_BINS_PER_SIDE:
        return 1.0
    lower, upper = log_ratio_edges()[place : place + 2]
    inside = (wanted - (below_N[place] - counts_N[place])) / counts_N[place]
    return math.exp(lower + inside * (upper - lower))
