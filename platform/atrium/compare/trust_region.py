"""The distribution of a run's token ratios relative to the window in use.

`ratios.jsonl` counts all tokens of each step's updates. For runs without this file, tokens are counted from
the recorded rollouts, which contain each token's ratio after the step's last update and whether the token was
clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from atrium.base.errors import RunFolderError
from atrium.base.plain_files import open_plain
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioCounts:
    """Numbers of tokens by sign of the advantage (positive, negative, zero).

    `count_SB` counts all tokens in B fine bins of the ratio; counts converted from wider bins may be
    fractions. `cut_S2` counts the tokens clipped at the lower and at the upper bound.
    """

    count_SB: Floats
    cut_S2: Floats

    def __add__(self, other: RatioCounts) -> RatioCounts:
        return RatioCounts(count_SB=self.count_SB + other.count_SB, cut_S2=self.cut_S2 + other.cut_S2)


def no_counts() -> RatioCounts:
    """Return counts with no token in any bin, as the start of a sum."""
    return RatioCounts(count_SB=np.zeros((len(SIGNS), NUM_FINE_BINS)), cut_S2=np.zeros((len(SIGNS), 2)))


def count_ratios(path: Path) -> RatioCounts:
    """Return the token counts of a rollout file; raises `RunFolderError` if it is missing or damaged."""
    try:
        with open_plain(path) as plain, pq.ParquetFile(plain) as file:
            table = file.read(columns=["ratio", "advantage", "clipped"])
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(
            f"{path.name} cannot be read: {str(error).splitlines()[0]}; leave out the run"
        ) from error
    table = table.filter(table.column("ratio").is_valid())
    ratio, advantage, clipped = (
        table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        for name in ("ratio", "advantage", "clipped")
    )
    own = ~np.isnan(advantage)  # tokens without an advantage were not sampled by the policy
    return counts_of(ratio[own], advantage[own], clipped[own])


def counts_of(
    ratio: NDArray[np.float32], advantage: NDArray[np.float32], clipped: NDArray[np.int8]
) -> RatioCounts:
    """Return the counts of N tokens from their ratios, advantages and clipped sides [N].

    A side is -1 (lower bound), 1 (upper bound) or 0 (not clipped). The end bins also count ratios outside the
    edges; the last bin also counts invalid ratios.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.nan_to_num(np.log(ratio.astype(np.float64)), nan=np.inf)
    place = np.clip(np.searchsorted(_fine_edges()[1:-1], log_ratio, side="right"), 0, NUM_FINE_BINS - 1)
    sign = np.where(advantage > 0, 0, np.where(advantage < 0, 1, 2))
    counted = np.bincount(sign * NUM_FINE_BINS + place, minlength=len(SIGNS) * NUM_FINE_BINS)
    cut = [[int(((sign == s) & (clipped == side)).sum()) for side in (-1, 1)] for s in range(len(SIGNS))]
    return RatioCounts(
        count_SB=counted.reshape(len(SIGNS), NUM_FINE_BINS).astype(np.float64),
        cut_S2=np.array(cut, dtype=np.float64),
    )


def counts_of_record(record: Mapping[str, object]) -> RatioCounts | None:
    """Return the token counts of a line of `ratios.jsonl`; None if the line is invalid.

    The tokens of each recorded bin are spread evenly in log w over the fine bins. Clipped tokens are not
    recorded there and count as 0.
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
    return RatioCounts(count_SB=np.diff(below, axis=1), cut_S2=no_counts().cut_S2)


def bin_edges(counts: RatioCounts, window: Window | None) -> Floats | None:
    """Return edges of 81 equal bins in log w that cover the window and most tokens; None without tokens."""
    total_B = counts.count_SB.sum(axis=0)
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


def binned(counts: RatioCounts, edges: Floats) -> Floats:
    """Return the counts [signs, B] in bins with the edges [B + 1] in log w.

    The first and last bin also count values outside the edges.
    """
    fine, num = _fine_edges(), len(edges) - 1
    middle = 0.5 * (fine[1:] + fine[:-1])
    place = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, num - 1)
    return np.array([np.bincount(place, weights=row, minlength=num) for row in counts.count_SB])


def window_in_use(divergence: object) -> tuple[Window | None, str]:
    """Return the constant window of a run's divergence and "", or None and the reason why there is none."""
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
    """Return a run's constant window as in `window_in_use`, or the recorded one if a plugin is missing."""
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
    """Return at most `num` of the steps, evenly spaced, including the last one."""
    if len(steps) <= num:
        return list(steps)
    return [steps[round(place)] for place in np.linspace(0, len(steps) - 1, num)]


def _fine_edges() -> Floats:
    """Return edges [NUM_FINE_BINS + 1] in log w: linear near w = 1, geometric (0.5 % wide) farther away."""
    reach = math.asinh(_LARGEST_LOG_RATIO / _SCALE)
    edges: Floats = _SCALE * np.sinh(np.linspace(-reach, reach, NUM_FINE_BINS + 1))
    return edges


def _finite_logs(window: Window) -> list[float]:
    logs = [math.log(bound) for bound in (window.lower, window.upper) if 0.0 < bound < math.inf]
    return [max(min(log, 3.0), -3.0) for log in logs]
