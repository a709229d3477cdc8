"""What claims about formulas are held to: each computation gives its largest error and draws its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import lambertw

from atrium.cli.methods.theory import method_window
from atrium.cli.methods.theory_findings import Findings, find
from atrium.compare.figures import methods as figures
from atrium.compare.figures.windows import BudgetedDivergence, draw_windows
from atrium.config.presets import read_preset
from atrium.windows import DIVERGENCES, Window

METHODS = ("grpo", "clip_higher", "atr")
_KL3 = DIVERGENCES["kl3"]
_BUDGETS = {"u = 1.2": _KL3.value(1.2), "l = 0.8": _KL3.value(0.8), "u = 1.28": _KL3.value(1.28)}
_SEEDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The largest error of a computation, None where nothing was claimed; its words and its figure."""

    error: float | None
    words: str
    figure: Path


def gradient_of_the_clip(folder: Path, cache_dir: Path) -> Computed:
    """Theorem 4.1: each method's token gradient against that of the general surrogate and of PPO's clip."""
    found = _theory("gradients")
    errors = [max(one.general_error, one.window_error or 0.0) for one in found.equivalences]
    num_tokens = found.equivalences[0].num_tokens
    return Computed(
        error=max(errors),
        words=f"{', '.join(METHODS)} on {num_tokens} random tokens each",
        figure=figures.draw_gradients(found.curves, folder, cache_dir)[0],
    )


def window_of_kl3(folder: Path, cache_dir: Path) -> Computed:
    """Theorem 4.2: l and u as Atrium finds them against Lambert's W; infinite where not wider above."""
    deltas = np.geomspace(1e-4, 1.0, 200)
    errors = []
    for delta in deltas:
        found, at = _KL3.window(float(delta)), -np.exp(-(1.0 + delta))
        lower, upper = -lambertw(at, 0).real, -lambertw(at, -1).real
        is_wider_above = found.upper - 1.0 > 1.0 - found.lower
        errors.append(max(abs(found.lower - lower), abs(found.upper - upper)) if is_wider_above else np.inf)
    windows = [method_window(read_preset(name)) for name in METHODS]
    return Computed(
        error=float(max(errors)),
        words=f"{len(deltas)} budgets from {deltas[0]:g} to {deltas[-1]:g}, all wider above",
        figure=figures.draw_method_windows(windows, folder, cache_dir)[0],
    )


def constraint_of_kl3(folder: Path, cache_dir: Path) -> Computed:
    """Figure 1: the share of ratios at which KL3 <= delta and l <= w <= u disagree."""
    ratios = np.linspace(0.3, 2.5, 22_001)
    wrong = [
        (_KL3.value(float(ratio)) <= delta) != _holds(_KL3.window(delta), float(ratio))
        for delta in _BUDGETS.values()
        for ratio in ratios
    ]
    panels = [
        BudgetedDivergence(title=f"KL3, {name}", function=_KL3, delta=d) for name, d in _BUDGETS.items()
    ]
    return Computed(
        error=float(np.mean(wrong)),
        words=f"{len(ratios)} ratios for each of {len(_BUDGETS)} budgets",
        figure=draw_windows(panels, folder, cache_dir)[0],
    )


def mass_moved_by_updates(folder: Path, cache_dir: Path) -> Computed:
    """Beside Theorem 5.1: the probability that moves into likely completions, by method."""
    found = _theory("updates")
    moved = [f"{one.name} {100 * one.mass_change[-1]:+.2f} %" for one in found.courses["true rewards"]]
    words = f"probability moved into completions above {found.bin_edges[-2]:.0%}: {', '.join(moved)}"
    return _of_updates(found, words, folder, cache_dir)


def entropy_moved_by_updates(folder: Path, cache_dir: Path) -> Computed:
    """Beside Theorem 5.2: the change of entropy, by method."""
    found = _theory("updates")
    moved = [f"{one.name} {one.entropy_change[-1]:+.4f}" for one in found.courses["true rewards"]]
    return _of_updates(found, f"nats per completion: {', '.join(moved)}", folder, cache_dir)


def _of_updates(found: Findings, words: str, folder: Path, cache_dir: Path) -> Computed:
    figure = figures.draw_updates(found.courses, found.bin_edges, folder, cache_dir)[0]
    words = f"means of {_SEEDS} batches of a tabular policy, true rewards; {words}"
    return Computed(error=None, words=words, figure=figure)


def _theory(part: str) -> Findings:
    return find([read_preset(name) for name in METHODS], [part], num_seeds=_SEEDS)


def _holds(window: Window, ratio: float) -> bool:
    return window.lower <= ratio <= window.upper


COMPUTATIONS: Mapping[str, Callable[[Path, Path], Computed]] = {
    function.__name__: function
    for function in (
        gradient_of_the_clip,
        window_of_kl3,
        constraint_of_kl3,
        mass_moved_by_updates,
        entropy_moved_by_updates,
    )
}
"""By the name that claims give them; each draws into a folder, with a folder for matplotlib's caches."""
