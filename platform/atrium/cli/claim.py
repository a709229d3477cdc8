"""`atrium claim`: list, show and check claims of papers, or reproduce all claims of a paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.claim.definition import SCALES
from atrium.claim.document import claim_document
from atrium.claim.files import claims_of, find_claim, papers
from atrium.cli.parser import CommandParser, whole
from atrium.config.nearest import suggestion
from atrium.views.terminal import print_document, standard_output

_USAGE = """\
Usage: atrium claim list [PAPER]
       atrium claim show CLAIM
       atrium claim check CLAIM DATA... [--scale laptop|day|paper]
       atrium claim reproduce PAPER --scale laptop|day|paper [--workers N] [--plan]

CLAIM is PAPER/NAME as printed by `atrium claim list`, or a path to your own YAML file. DATA are runs and
folders of runs, or tables (CSV, JSONL, Parquet) with columns run, method, seed, problem, sample, correct from
any trainer. Data that do not follow the claim's design are an error.
"""


def main(argv: Sequence[str]) -> int:
    """Run the subcommand in `argv` and return the exit code; raise `AtriumError` if it fails."""
    command, rest = (argv[0], list(argv[1:])) if argv else ("--help", [])
    if command in ("-h", "--help", "help"):
        sys.stdout.write(_USAGE)
        return 0
    commands = {"list": _list, "show": _show, "check": _check, "reproduce": _reproduce}
    if command not in commands:
        near = suggestion(command, commands) or f"; use one of {', '.join(commands)}"
        raise ConfigError(f"atrium claim {command}: unknown command{near}")
    return commands[command](rest)


def _list(argv: Sequence[str]) -> int:
    parser = CommandParser("claim list", "List the claims of one paper, or of all papers.")
    parser.add_argument("paper", nargs="?", metavar="PAPER", help=", ".join(papers()))
    wanted = parser.parse(argv).paper
    for paper in [wanted] if wanted else papers():
        for claim in claims_of(paper):
            sys.stdout.write(f"{claim.title:32} {claim.place:32} {', '.join(claim.designs) or 'computed'}\n")
    return 0


def _of_claim(command: str, purpose: str) -> CommandParser:
    """Return the parser of a subcommand with the argument CLAIM."""
    parser = CommandParser(command, purpose)
    parser.add_argument("claim", metavar="CLAIM", help="PAPER/NAME, or a path to a YAML file")
    return parser


def _show(argv: Sequence[str]) -> int:
    parser = _of_claim("claim show", "Show a claim's statement and the designs that test it.")
    print_document(standard_output(), claim_document(find_claim(parser.parse(argv).claim)))
    return 0


def _check(argv: Sequence[str]) -> int:
    parser = _of_claim("claim check", "Judge a claim by runs or by a table of answers.")
    parser.add_argument("data", nargs="+", type=Path, metavar="DATA", help="runs, folders of runs, or tables")
    parser.add_argument(
        "--scale", choices=SCALES, default="paper", help="the scale of the design (default: paper)"
    )
    arguments = parser.parse(argv)
    from atrium.claim.evidence import design, evidence_of

    claim = find_claim(arguments.claim)
    wanted = design(claim, arguments.scale)
    judged = wanted.judge(evidence_of(wanted, arguments.data))
    sys.stdout.write(f"{claim.title}, scale={arguments.scale}: {judged.word}\n{judged.why}\n")
    return 0


def _reproduce(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "claim reproduce",
        "Compute and run all claims of a paper at a scale, and write docs/reproductions.md. The same\n"
        "command resumes an interrupted run. It first prints the expected hours, memory and power.",
    )
    parser.add_argument("paper", metavar="PAPER", help=", ".join(papers()))
    parser.add_argument("--scale", choices=SCALES, required=True)
    parser.add_argument(
        "--workers", type=whole(1), default=1, metavar="N", help="number of processes (default: 1)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs"), metavar="DIR", help="output folder (default: docs)"
    )
    parser.add_argument("--plan", action="store_true", help="only print the time, the memory and the power")
    parser.add_argument("--computed", action="store_true", help="only claims that need no runs")
    arguments = parser.parse(argv)
    from atrium.assemble.reproducing import plan_lines, reproduce

    claims = claims_of(arguments.paper)
    sys.stdout.write("\n".join(plan_lines(claims, arguments.scale, arguments.workers)) + "\n")
    sys.stdout.flush()
    if arguments.plan:
        return 0
    return reproduce(
        claims,
        arguments.scale,
        arguments.out,
        num_workers=arguments.workers,
        trains=not arguments.computed,
    )
