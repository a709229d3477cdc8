"""The distribution of a run's token ratios relative to the window in use.

Each line of `ratios.jsonl` counts the tokens in a step's updates by ratio and by the sign of the advantage
(positive, negative, zero).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from atrium.base.recorded import read_object
from atrium.base.records import Floats
from atrium.method.divergences import Divergence
from atrium.method.windows import Window
from atrium.runs.run_folder import RunFolder

SIGNS = ("positive", "negative", "zero")
NUM_FINE_BINS = 4000
_LARGEST_LOG_RATIO = 20.0
_SCALE = 1e-3
_NUM_BINS = 81
_TAIL = 0.002
_LEAST_REACH = 0.01


def no_counts() -> Floats:
    """Return token counts [signs, fine bins] that are all 0, as the start of a sum."""
    return np.zeros((len(SIGNS), NUM_FINE_BINS))


def counts_of_record(record: Mapping[str, object]) -> Floats | None:
    """Return the token counts [signs, fine bins] of a line of `ratios.jsonl`, or None if it is invalid.

    The tokens of each recorded bin are spread evenly in log w over the fine bins, so counts may be fractions.
    """
    try:
        edges = np.log(np.array(record["edges"], dtype=np.float64))
        rows = [np.array(record[sign], dtype=np.float64) for sign in SIGNS]
    except (KeyError, TypeError, ValueError):
        return None
    if edges.ndim != 1 or any(row.shape != (len(edges) - 1,) for row in rows):
        return None
    if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        return None
    below = [np.interp(_fine_edges(), edges, np.concatenate([[0.0], np.cumsum(row)])) for row in rows]
    return np.diff(np.array(below), axis=1)


def bin_edges(count_SB: Floats, window: Window | None) -> Floats | None:
    """Return the edges of 81 equal bins in log w that cover the window and most tokens.

    If the window has finite bounds, the bins extend in log w at most six times as far from w = 1 as the
    farther of these bounds. Logarithms of bounds beyond ±3 count as ±3, so such a bound may lie outside the
    bins. Returns None if there are no tokens.
    """
    total_B = count_SB.sum(axis=0)
    if not total_B.sum():
        return None
    fine = _fine_edges()
    below = np.cumsum(total_B) / total_B.sum()
    low = fine[int(np.searchsorted(below, _TAIL))]
    high = fine[int(np.searchsorted(below, 1.0 - _TAIL)) + 1]
    reach = max(abs(low), abs(high), _LEAST_REACH)
    if bounds := _finite_logs(window) if window else []:
        # A few extreme ratios must not squeeze the window into one bin.
        widest = max(abs(bound) for bound in bounds)
        reach = min(max(reach, 1.6 * widest), 6.0 * widest)
    return np.linspace(-reach, reach, _NUM_BINS + 1)


def binned(count_SB: Floats, edges: Floats) -> Floats:
    """Return the counts [signs, B] in bins with the edges [B + 1] in log w.

    The first and last bin also count values outside the edges.
    """
    fine, num = _fine_edges(), len(edges) - 1
    middle = 0.5 * (fine[1:] + fine[:-1])
    place = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, num - 1)
    return np.array([np.bincount(place, weights=row, minlength=num) for row in count_SB])


def window_in_use(divergence: object) -> tuple[Window | None, str]:
    """Return the constant window of a run's divergence and an empty text, or None and why none is known."""
    if not isinstance(divergence, Mapping):
        return None, "the run's configuration cannot be read"
    kind = str(divergence.get("kind"))
    try:
        found = Divergence.build(**divergence).fixed_window()
    except KeyError:
        return None, f"unknown divergence {kind}; install the plugin that defines it"
    except (TypeError, ValueError, ArithmeticError):
        return None, f"the settings of the divergence {kind} are invalid"
    if found is None:
        return None, f"{kind} has no constant window: its bounds differ by token or minibatch"
    return found, ""


def window_of_run(folder: RunFolder, divergence: object) -> tuple[Window | None, str]:
    """Return a run's constant window and an empty text, or None and why none is known.

    If `window_in_use` cannot determine the window, for instance because a plugin is missing, the window that
    the run recorded is returned.
    """
    found, reason = window_in_use(divergence)
    recorded, _ = read_object(folder.method_file) if found is None else ({}, None)
    bounds = recorded.get("window")
    if not isinstance(bounds, list) or len(bounds) != 2:
        return found, reason
    try:
        return Window(float(bounds[0]), math.inf if bounds[1] is None else float(bounds[1])), ""
    except (TypeError, ValueError):
        return found, reason


def evenly_chosen(steps: Sequence[int], num: int) -> list[int]:
    """Return at most `num` of the steps, evenly spaced, including the first and the last one.

    `num` must be at least 2.
    """
    if len(steps) <= num:
        return list(steps)
    return [steps[round(place)] for place in np.linspace(0, len(steps) - 1, num)]


def _fine_edges() -> Floats:
    """Return the edges [NUM_FINE_BINS + 1] of the fine bins in log w.

    The bins have equal widths near w = 1. Farther away, the width of a bin is about 0.5 % of |log w|.
    """
    reach = math.asinh(_LARGEST_LOG_RATIO / _SCALE)
    edges: Floats = _SCALE * np.sinh(np.linspace(-reach, reach, NUM_FINE_BINS + 1))
    return edges


def _finite_logs(window: Window) -> list[float]:
    logs = [math.log(bound) for bound in (window.lower, window.upper) if 0.0 < bound < math.inf]
    return [max(min(log, 3.0), -3.0) for log in logs]
