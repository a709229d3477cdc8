"""`atrium claim`: list and show claims, check data against one, run all of a paper's at a scale."""

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

CLAIM is PAPER/NAME as `atrium claim list` prints it, or a path to a YAML file of your own. DATA are runs
and folders of runs, or tables (CSV, JSONL, Parquet) of run, method, seed, problem, sample, correct from any
trainer; what is not of the claim's design is refused.
"""


def main(argv: Sequence[str]) -> int:
    """Do what `argv` says; the exit code, or an `AtriumError`."""
    command, rest = (argv[0], list(argv[1:])) if argv else ("--help", [])
    if command in ("-h", "--help", "help"):
        sys.stdout.write(_USAGE)
        return 0
    commands = {"list": _list, "show": _show, "check": _check, "reproduce": _reproduce}
    if command not in commands:
        near = suggestion(command, commands) or f"; use one of {', '.join(commands)}"
        raise ConfigError(f"atrium claim {command}: there is no such command{near}")
    return commands[command](rest)


def _list(argv: Sequence[str]) -> int:
    parser = CommandParser("claim list", "List the claims of a paper, or of all.")
    parser.add_argument("paper", nargs="?", metavar="PAPER", help=", ".join(papers()))
    wanted = parser.parse(argv).paper
    for paper in [wanted] if wanted else papers():
        for claim in claims_of(paper):
            sys.stdout.write(f"{claim.title:32} {claim.place:32} {', '.join(claim.designs) or 'computed'}\n")
    return 0


def _of_claim(command: str, purpose: str) -> CommandParser:
    """The arguments of a command about one claim."""
    parser = CommandParser(command, purpose)
    parser.add_argument("claim", metavar="CLAIM", help="PAPER/NAME, or a path to a YAML file")
    return parser


def _show(argv: Sequence[str]) -> int:
    parser = _of_claim("claim show", "Show what a claim says, and the designs that would show it.")
    print_document(standard_output(), claim_document(find_claim(parser.parse(argv).claim)))
    return 0


def _check(argv: Sequence[str]) -> int:
    parser = _of_claim("claim check", "Say what runs, or a table of answers, say of a claim.")
    parser.add_argument("data", nargs="+", type=Path, metavar="DATA", help="runs, folders of runs, or tables")
    parser.add_argument("--scale", choices=SCALES, default="paper", help="the design (default: paper)")
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
        "command resumes where it stopped. Hours, memory and power are printed before anything starts.",
    )
    parser.add_argument("paper", metavar="PAPER", help=", ".join(papers()))
    parser.add_argument("--scale", choices=SCALES, required=True)
    parser.add_argument("--workers", type=whole(1), default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("docs"), metavar="DIR", help="default: docs")
    parser.add_argument("--plan", action="store_true", help="only print hours, memory and power")
    parser.add_argument("--computed", action="store_true", help="only what needs no runs")
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
