"""`atrium windows`: what each divergence allows at a budget, which budgets match, and which arms coincide."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from atrium.base.errors import ConfigError
from atrium.cli.methods import window_rows
from atrium.cli.methods.window_rows import PROBABILITIES, Arm, Match
from atrium.cli.parser import CommandParser, draw
from atrium.config.presets import read_presets
from atrium.method.windows import DIVERGENCES, Window, divergence
from atrium.method.words import interval, window_text
from atrium.views.terminal import print_json, print_numbers, say, standard_output, tell

_CLIP = (0.2, 0.28)
_CACHE = Path("runs/.cache")
_EXAMPLES = """\
examples:
  atrium windows                               every file of conf/divergence at its own budget
  atrium windows --budget 0.05                 every divergence at one budget
  atrium windows kl3=0.0177,0.0231 chi2 k2     some, at budgets of their own
  atrium windows --clip 0.2 0.2                which budgets share a bound with plain clipping
"""


def main(argv: Sequence[str]) -> int:
    """Print and draw the windows, or raise `ConfigError` for what cannot be one."""
    parser = _parser()
    arguments = parser.parse(argv)
    budget = None if arguments.budget is None else window_rows.parse_budget(arguments.budget, "--budget")
    clip = _clip_range(arguments)
    if arguments.names:
        arms = window_rows.named_arms(arguments.names, budget)
    else:
        arms = window_rows.shipped_arms() if budget is None else window_rows.arms_at(budget)
    matches = window_rows.matches(clip)
    if arguments.json:
        _print_json(arms, matches, clip)
    else:
        console = standard_output()
        _print_arms(arms, console, "at their own budgets" if budget is None else f"at budget {budget:g}")
        _print_by_probability(arms, console)
        _print_matches(matches, clip, console)
        _print_coinciding(arms, matches, clip, console)
        sys.stdout.flush()
    draw(arguments, lambda folder: _draw(arms, clip, folder))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "windows",
        "Show the ratios that each divergence allows: its window [l, u] at a budget, the budgets that match\n"
        "a clip range, and which choices are the same method (equal windows). Draws them too.",
        _EXAMPLES,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="DIV[=BUDGET,...]",
        help="files of conf/divergence by name, or of your own by path (default: all)",
    )
    parser.add_argument("--budget", metavar="X", help="the budget (default: each file's own)")
    parser.add_argument(
        "--clip",
        nargs=2,
        metavar=("LOW", "HIGH"),
        default=[str(number) for number in _CLIP],
        help="the clip range to match, 1 - LOW to 1 + HIGH (default: 0.2 0.28)",
    )
    parser.add_figures()
    return parser


def _clip_range(arguments: argparse.Namespace) -> Window:
    try:
        low, high = (float(text) for text in arguments.clip)
    except ValueError:
        low = high = math.nan
    if not (0.0 < low < 1.0 and 0.0 < high < math.inf):
        raise ConfigError(
            f"--clip {' '.join(arguments.clip)}: no clip range; allowed is LOW between 0 and 1 and "
            "HIGH above 0, such as --clip 0.2 0.28"
        )
    return Window(1.0 - low, 1.0 + high)


def _print_arms(arms: Sequence[Arm], console: Console, where: str) -> None:
    say(console, f"windows {where}: D(w) ≤ δ is the same as l ≤ w ≤ u", "bold")
    titles = ("divergence", "budget δ", "l", "u", "1 - l", "u - 1", "-log l", "log u", "D''(1)")
    rows = [_row(arm, arm.window) for arm in arms if arm.window is not None]
    if rows:
        print_numbers(console, titles, rows, dropped_first=("-log l", "log u", "1 - l", "u - 1"))
    without = [arm.name for arm in arms if arm.window is None and not arm.config.of_single_tokens]
    if without:
        text = f"no window on the ratio (whole distributions or completions): {', '.join(without)}"
        tell(console, text, "dim")
    note = "equal budgets of divergences with different curvature D''(1) are different trust regions"
    tell(console, note, "dim")
    console.print()


def _row(arm: Arm, window: Window) -> list[str]:
    is_start = arm.config.kind == "balanced_window"  # BAPO widens it, minibatch by minibatch
    curvature = arm.config.of_ratio.curvature if arm.config.of_ratio is not None else None
    return [
        f"{arm.name} (start)" if is_start else arm.name,
        "" if arm.delta is None else f"{arm.delta:.6g}",
        _number(window.lower),
        _number(window.upper),
        _number(1.0 - window.lower),
        _number(window.upper - 1.0),
        _number(math.inf if window.lower == 0.0 else -math.log(window.lower)),
        _number(math.log(window.upper) if math.isfinite(window.upper) else math.inf),
        "kink" if arm.config.of_ratio is not None and curvature is None else _short(curvature),
    ]


def _print_by_probability(arms: Sequence[Arm], console: Console) -> None:
    chosen = [arm for arm in arms if arm.config.of_single_tokens]
    if not chosen:
        return
    say(console, "windows that depend on the token's behavior probability q", "bold")
    titles = ["divergence", *(f"q = {q:g}" for q in PROBABILITIES)]
    rows = []
    for arm in chosen:
        found = [arm.config.window_at(q) for q in PROBABILITIES]
        rows.append([arm.name, *("" if window is None else interval(window, 3) for window in found)])
    print_numbers(console, titles, rows, dropped_first=titles[3:1:-1])
    console.print()


def _print_matches(matches: Sequence[Match], clip: Window, console: Console) -> None:
    lower, upper = clip.lower, clip.upper
    say(console, f"budgets that match the clip range [{lower:g}, {upper:g}]", "bold")
    titles = ("divergence", f"δ for u = {upper:g}", "l then", f"δ for l = {lower:g}", "u then")
    rows = [
        [
            match.name,
            "–" if match.budget_at_upper is None else f"{match.budget_at_upper:.6g}",
            "–" if match.lower is None else _number(match.lower),
            f"{match.budget_at_lower:.6g}",
            _number(match.upper),
        ]
        for match in matches
    ]
    print_numbers(console, titles, rows)
    console.print()


def _print_coinciding(arms: Sequence[Arm], matches: Sequence[Match], clip: Window, console: Console) -> None:
    say(console, "the same method (l and u equal to 1e-12)", "bold")
    at_upper = [(match.name, Window(match.lower, clip.upper)) for match in matches if match.lower is not None]
    at_lower = [(match.name, Window(clip.lower, match.upper)) for match in matches]
    for title, named in (
        ("above", [(arm.name, arm.window) for arm in arms]),
        ("matched at u", at_upper),
        ("matched at l", at_lower),
    ):
        found = [" = ".join(names) for names in window_rows.coinciding(named)]
        tell(console, f"{title + ':':<14}{'   '.join(found) or 'none'}", indent=2)
    for members in window_rows.families(read_presets()):
        texts = [f"{preset.name} {window_text(preset.divergence)}" for preset in members]
        tell(console, f"methods that differ in their window only: {', '.join(texts)}", indent=2)


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.6f}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _print_json(arms: Sequence[Arm], matches: Sequence[Match], clip: Window) -> None:
    found = {
        "arms": window_rows.described(arms),
        "same": window_rows.coinciding((arm.name, arm.window) for arm in arms),
        "clip": [clip.lower, clip.upper],
        "matches": {match.name: dataclasses.asdict(match) for match in matches},
    }
    print_json(found)


def _draw(arms: Sequence[Arm], clip: Window, folder: Path) -> tuple[Path, ...]:
    """The pictures of the arms and of the plane; divergences without a window are on neither."""
    from atrium.compare.figures.style import merged
    from atrium.compare.figures.windows import BudgetedDivergence, Plane, draw_plane, draw_windows

    panels = [
        BudgetedDivergence(title=arm.name, function=arm.config.of_ratio, delta=arm.delta)
        for arm in arms
        if arm.config.of_ratio is not None and arm.delta is not None
    ]
    windows = {arm.name: arm.window for arm in arms if arm.window is not None}
    points = merged(windows, lambda one, other: one.digits == other.digits, " = ")
    families = {**DIVERGENCES, "alpha = 1": divergence("alpha", alpha=1.0)}
    drawn = draw_windows(panels, folder, _CACHE) if panels else ()
    return *drawn, *draw_plane(Plane(families=families, points=points, clip=clip), folder, _CACHE)
