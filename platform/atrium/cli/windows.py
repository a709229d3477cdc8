"""`atrium windows`: what each divergence allows at a budget, which budgets match, and which arms coincide."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.catalog import windows as window_rows
from atrium.catalog.document import windows_document
from atrium.catalog.windows import Arm, Match
from atrium.cli.parser import CommandParser, draw
from atrium.method.windows import DIVERGENCES, Window, divergence
from atrium.views.terminal import print_document, print_json, standard_output

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
        print_document(standard_output(), windows_document(arms, matches, clip, budget=budget))
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


def _print_json(arms: Sequence[Arm], matches: Sequence[Match], clip: Window) -> None:
    found = {
        "arms": window_rows.described(arms),
        "same": window_rows.coinciding((arm.name, arm.window) for arm in arms),
        "clip": [clip.lower, clip.upper],
        "matches": {match.name: dataclasses.asdict(match) for match in matches},
    }
    print_json(found)


def _draw(arms: Sequence[Arm], clip: Window, folder: Path) -> list[Path]:
    """The pictures of the arms and of the plane; divergences without a window are on neither."""
    from atrium.catalog.window_figures import BudgetedDivergence, plane_picture, windows_picture
    from atrium.views.figures.sheet import save

    panels = [
        BudgetedDivergence(title=arm.name, function=arm.config.of_ratio, delta=arm.delta)
        for arm in arms
        if arm.config.of_ratio is not None and arm.delta is not None
    ]
    windows = {arm.name: arm.window for arm in arms if arm.window is not None}
    families = {**DIVERGENCES, "alpha = 1": divergence("alpha", alpha=1.0)}
    pictures = [windows_picture(panels)] if panels else []
    return save([*pictures, plane_picture(families, windows, clip)], folder, _CACHE)
