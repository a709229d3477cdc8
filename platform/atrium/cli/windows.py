"""`atrium windows`: the windows of divergences at their budgets, and budgets that match a clip range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from atrium.base.errors import ConfigError
from atrium.catalog import windows as window_rows
from atrium.catalog.document import windows_document
from atrium.catalog.window_figures import window_pictures
from atrium.cli.parser import CommandParser, present
from atrium.method.windows import Window

_EXAMPLES = """\
examples:
  atrium windows                               every file of conf/divergence at its own budget
  atrium windows --budget 0.05                 every divergence at one budget
  atrium windows kl3=0.0177,0.0231 chi2 k2     some, at given or their own budgets
  atrium windows --clip 0.2 0.2                the budgets that share a bound with plain clipping
"""


def main(argv: Sequence[str]) -> int:
    """Print and draw the windows; raise `ConfigError` for an invalid name, budget or clip range."""
    arguments = _parser().parse(argv)
    budget = None if arguments.budget is None else window_rows.parse_budget(arguments.budget, "--budget")
    low, high = arguments.clip
    if not (0.0 < low < 1.0 and 0.0 < high < math.inf):
        raise ConfigError(
            f"--clip LOW HIGH: LOW must be between 0 and 1, and HIGH greater than 0, got {low:g} "
            f"{high:g}; for example, use --clip 0.2 0.28"
        )
    clip = Window(1.0 - low, 1.0 + high)
    if arguments.names:
        arms = window_rows.named_arms(arguments.names, budget)
    else:
        arms = window_rows.shipped_arms() if budget is None else window_rows.arms_at(budget)
    matches = window_rows.matches(clip)
    found = {
        "arms": window_rows.described(arms),
        "same": window_rows.coinciding((arm.name, arm.window) for arm in arms),
        "clip": [clip.lower, clip.upper],
        "matches": {match.name: dataclasses.asdict(match) for match in matches},
    }
    present(
        arguments,
        found,
        lambda: windows_document(arms, matches, clip, budget=budget),
        lambda: window_pictures(arms, clip),
    )
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "windows",
        "Show and draw the ratios that each divergence allows: its window [l, u] at a budget, the budgets\n"
        "that match a clip range, and the choices that are the same method (equal windows).",
        _EXAMPLES,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="DIV[=BUDGET,...]",
        help="names of files in conf/divergence, or paths to your own (default: all)",
    )
    parser.add_argument(
        "--budget", metavar="X", help="the budget of all divergences (default: each file's own)"
    )
    parser.add_argument(
        "--clip",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        default=(0.2, 0.28),
        help="the clip range to match, from 1 - LOW to 1 + HIGH (default: 0.2 0.28)",
    )
    parser.add_figures()
    return parser
