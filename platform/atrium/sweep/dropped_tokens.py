"""Budgets with which different divergences clip the same share of a recorded run's tokens.

A window [l, u] drops a token if A > 0 and w > u, or if A < 0 and w < l. Two divergences whose windows
agree on one side may still drop different shares of tokens. This module finds the budget that drops the
same share as a clip range, on the recorded ratios of one run (`ratios.jsonl`). Another trust region would
have changed the policy and its ratios, so the shares match only to first order.

Axes: N bins of the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.json_lines import read_json_lines
from atrium.base.records import Floats
from atrium.method.windows import Window, window
from atrium.runs.run_folder import RunFolder

_SMALLEST_BUDGET, _LARGEST_BUDGET = 1e-8, 1e3
_NUM_HALVINGS = 60
_KEYS = ("edges", "positive", "negative", "zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRatios:
    """Numbers of tokens by sign of the advantage A, in bins of the importance ratio w.

    `positive` [N] counts tokens with A > 0, and `negative` [N] tokens with A < 0. `edges` [N + 1] are the
    edges of the bins. `num_tokens` is the number of all tokens, including those with A = 0.
    """

    edges: Floats
    positive: Floats
    negative: Floats
    num_tokens: float


def dropped_share(ratios: SignedRatios, bounds: Window) -> float:
    """Return the share of tokens, from 0 to 1, that the window drops.

    Tokens are assumed to be spread evenly within a bin.
    """
    above = ratios.positive.sum() - _below(ratios.edges, ratios.positive, bounds.upper)
    return float(above + _below(ratios.edges, ratios.negative, bounds.lower)) / ratios.num_tokens


def budget_for_dropped(kind: str, clip_range: float, ratios: SignedRatios) -> float:
    """Return the budget with which a divergence drops as many tokens as clipping to 1 +- `clip_range`.

    `kind` is the divergence. Raises `ValueError` if clipping drops no token, or if no budget drops as many
    tokens.
    """
    wanted = dropped_share(ratios, window("ratio", clip_range))
    if wanted == 0.0:
        raise ValueError("the clip range drops none of the run's tokens; choose a smaller range")
    low, high = math.log(_SMALLEST_BUDGET), math.log(_LARGEST_BUDGET)
    if not _dropped(kind, high, ratios) <= wanted <= _dropped(kind, low, ratios):
        raise ValueError(
            f"no budget of {kind} drops {wanted:.3%} of the run's tokens; choose another divergence"
        )
    for _ in range(_NUM_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _dropped(kind, middle, ratios) > wanted else (low, middle)
    return float(f"{math.exp(high):.6g}")


@lru_cache(maxsize=8)
def ratios_of_run(run: str) -> SignedRatios:
    """Return the ratios of all steps of a run; raise `ConfigError` if its directory contains none."""
    try:
        folder = RunFolder.open(run)
        records = read_json_lines(folder.ratios_file).records
    except (RunFolderError, OSError) as error:
        raise ConfigError(f"the ratios of {run} cannot be read: {error}; choose another run") from error
    try:
        return _summed([[np.asarray(record[key], dtype=np.float64) for key in _KEYS] for record in records])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{run} has no distribution of ratios in ratios.jsonl; choose another run"
        ) from error


def _summed(steps: Sequence[Sequence[Floats]]) -> SignedRatios:
    """Sum the counts of all steps on the union of their bin edges.

    The edges differ between steps, because records omit empty outer bins.
    """
    union = np.unique(np.concatenate([edges for edges, *_ in steps]))
    positive, negative, zero = (
        np.asarray(sum(np.diff(_below(step[0], step[place], union)) for step in steps))
        for place in range(1, len(_KEYS))
    )
    num_tokens = float(positive.sum() + negative.sum() + zero.sum())
    if num_tokens <= 0.0:
        raise ValueError("the run recorded no tokens; choose another run")
    return SignedRatios(edges=union, positive=positive, negative=negative, num_tokens=num_tokens)


def _dropped(kind: str, log_budget: float, ratios: SignedRatios) -> float:
    return dropped_share(ratios, window(kind, math.exp(log_budget)))


def _below(edges: Floats, counts: Floats, ratio: ArrayLike) -> Floats:
    """Return the number of tokens with a ratio below `ratio`.

    Tokens are assumed to be spread evenly within a bin.
    """
    return np.asarray(
        np.interp(np.asarray(ratio, dtype=np.float64), edges, np.concatenate([[0.0], np.cumsum(counts)]))
    )
