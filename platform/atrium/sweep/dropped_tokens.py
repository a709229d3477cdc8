"""Budgets matched by what they drop: the share of a recorded run's tokens whose gradient a window cuts.

A window [l, u] drops a token when A > 0 and w > u, or A < 0 and w < l. Two divergences whose windows agree
on one side need not drop equally often; this finds the budget that would have dropped what a clip range
would have, on the ratios of one run (`ratios.jsonl`). Those ratios are the run's own: under another
trust region the policy would have moved otherwise, so the shares match at first order, not exactly.

Axes: N bins of the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.json_lines import read_json_lines
from atrium.method.windows import Window, window
from atrium.runs.run_folder import RunFolder

_SMALLEST_BUDGET, _LARGEST_BUDGET = 1e-8, 1e3
_NUM_HALVINGS = 60
_KEYS = ("edges", "positive", "negative", "zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRatios:
    """How many tokens had which ratio: counts [N] by sign of advantage, in bins with `edges` [N + 1] of w."""

    edges: NDArray[np.float64]
    positive: NDArray[np.float64]
    negative: NDArray[np.float64]
    num_tokens: float


def dropped_share(ratios: SignedRatios, bounds: Window) -> float:
    """The share of tokens, 0 to 1, that the window cuts; within a bin tokens are spread evenly in w."""
    above = ratios.positive.sum() - _below(ratios.edges, ratios.positive, bounds.upper)
    return float(above + _below(ratios.edges, ratios.negative, bounds.lower)) / ratios.num_tokens


def budget_for_dropped(kind: str, clip_range: float, ratios: SignedRatios) -> float:
    """The budget of a divergence that drops the share which clipping to 1 +- `clip_range` drops.

    Raises `ValueError` where clipping drops nothing, or no budget drops as little or as much.
    """
    wanted = dropped_share(ratios, window("ratio", clip_range))
    if wanted == 0.0:
        raise ValueError("clipping there drops none of the run's tokens, so that any wide budget matches")
    low, high = math.log(_SMALLEST_BUDGET), math.log(_LARGEST_BUDGET)
    if not _dropped(kind, high, ratios) <= wanted <= _dropped(kind, low, ratios):
        raise ValueError(f"no budget of {kind} drops {wanted:.3%} of the run's tokens")
    for _ in range(_NUM_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _dropped(kind, middle, ratios) > wanted else (low, middle)
    return float(f"{math.exp(high):.6g}")


@lru_cache(maxsize=8)
def ratios_of_run(run: str) -> SignedRatios:
    """The ratios of all steps of a run; `ConfigError` where the folder has none."""
    try:
        folder = RunFolder.open(run)
        records = read_json_lines(folder.ratios_file).records
    except (RunFolderError, OSError) as error:
        raise ConfigError(f"ratios cannot be read: {error}") from error
    try:
        return _summed([[np.asarray(record[key], dtype=np.float64) for key in _KEYS] for record in records])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{run}: its ratios.jsonl holds no distribution of ratios") from error


def _summed(steps: Sequence[Sequence[NDArray[np.float64]]]) -> SignedRatios:
    """Steps cut empty bins off their ends, so all are brought onto the union of their edges."""
    union = np.unique(np.concatenate([edges for edges, *_ in steps]))
    positive, negative, zero = (
        np.asarray(sum(np.diff(_below(step[0], step[place], union)) for step in steps))
        for place in range(1, len(_KEYS))
    )
    num_tokens = float(positive.sum() + negative.sum() + zero.sum())
    if num_tokens <= 0.0:
        raise ValueError("no tokens")
    return SignedRatios(edges=union, positive=positive, negative=negative, num_tokens=num_tokens)


def _dropped(kind: str, log_budget: float, ratios: SignedRatios) -> float:
    return dropped_share(ratios, window(kind, math.exp(log_budget)))


def _below(edges: NDArray[np.float64], counts: NDArray[np.float64], ratio: ArrayLike) -> NDArray[np.float64]:
    """How many tokens have a smaller ratio, where those of a bin are spread evenly."""
    return np.asarray(
        np.interp(np.asarray(ratio, dtype=np.float64), edges, np.concatenate([[0.0], np.cumsum(counts)]))
    )
