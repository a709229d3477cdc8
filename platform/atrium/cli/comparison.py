"""The arguments of `atrium compare` and `atrium report`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, pair_of, points, whole

if TYPE_CHECKING:
    from atrium.runs.curve_outcomes import CurveOutcome

_AT = ("last", "steps", "tokens", "wall_clock")
_EXAMPLES = """\
Runs that differ only in their seeds form an arm, which is named after its algorithm. The name of an
experiment selects all of its runs.

  atrium compare                             the latest experiment with two methods or more
  atrium compare 1a2b 3c4d                   two runs
  atrium compare my_experiment               all its runs, grouped by method
  atrium compare my_experiment --by algorithm.name --baseline grpo --at tokens
  atrium compare my_experiment --label atr="ATR (ours)"
  atrium compare my_experiment --area rollout/reward --steps-to rollout/reward=0.5 --until 40
"""


def _reached(text: str) -> tuple[str, float]:
    """Parse the value of --steps-to: a metric and its target value."""
    form = "METRIC=VALUE, such as rollout/reward=0.5"
    metric, value = pair_of(form)(text)
    try:
        return metric, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {form}, got {text}") from None


_REPEATABLE: Sequence[tuple[str, str, Callable[[str], object], str]] = (
    ("--by", "KEY", str, "group by this setting only"),
    ("--label", "OLD=NEW", pair_of("OLD=NEW, such as 'atr=ATR (ours)'"), "rename an arm"),
    (
        "--leave-out",
        "RUN=REASON",
        pair_of("RUN=REASON, such as '1a2b=its node lost power'"),
        "leave out this run; the reason is printed with the result",
    ),
    ("--benchmark", "NAME", str, "only this benchmark"),
    ("--area", "METRIC", str, "also compare the mean of a training metric over steps 1 to --until"),
    (
        "--steps-to",
        "METRIC=VALUE",
        _reached,
        "also compare the step at which a training metric reaches a value, at most --until",
    ),
    (
        "--ceiling",
        "METRIC",
        str,
        "also fit a training metric's curve by tokens; compare ceilings and tokens at half of the rise",
    ),
)
"""Repeatable options: name, placeholder of the value, type, help."""


def comparison_parser(command: str, purpose: str) -> CommandParser:
    """Return the parser of `atrium compare` or `atrium report`, whichever `command` names."""
    parser = CommandParser(command, purpose, _EXAMPLES.replace("atrium compare", f"atrium {command}"))
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="a run's name or its end, or an experiment (default: the latest with two methods or more)",
    )
    parser.add_argument(
        "--baseline",
        metavar="ARM",
        help="an arm by its name, its algorithm or the end of a run's name (default: grpo, else reinforce, "
        "else the arm whose first run started first)",
    )
    for name, value, kind, meaning in _REPEATABLE:
        parser.add_argument(
            name, action="append", default=[], metavar=value, type=kind, help=f"{meaning} (repeatable)"
        )
    parser.add_argument(
        "--until", type=whole(0), metavar="STEP", help="the last step of --area and --steps-to"
    )
    parser.add_argument(
        "--at",
        choices=_AT,
        default="last",
        help="compare at each run's last evaluation (the default), at equal steps, equal generated tokens, "
        "or equal training time",
    )
    parser.add_argument(
        "--effect",
        type=points,
        default="2",
        metavar="POINTS",
        help="the difference for which the needed number of seeds is planned (default: 2)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the report (default: RUNS_DIR/reports)")
    parser.add_argument("--no-files", action="store_true", help="print the comparison without writing files")
    parser.add_runs_dir()
    return parser


def asked_outcomes(arguments: argparse.Namespace) -> list[CurveOutcome]:
    """Return the outcomes that --area and --steps-to request.

    Raises `ConfigError` if one of these options is given without --until or with an --until of less than 2.
    """
    from atrium.runs.curve_outcomes import Area, StepsTo

    until = arguments.until
    if (arguments.area or arguments.steps_to) and (until is None or until < 2):
        raise ConfigError(
            "--area and --steps-to require --until STEP with a last step of at least 2; add --until"
        )
    return [
        *(Area(kind="area", metric=metric, until=until) for metric in arguments.area),
        *(
            StepsTo(kind="steps_to", metric=metric, value=value, until=until)
            for metric, value in arguments.steps_to
        ),
    ]
