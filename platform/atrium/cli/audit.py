"""`atrium audit`: the conclusions that a published table of scores supports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, points, print_or_write, whole
from atrium.config.nearest import suggestion
from atrium.document.formatting import counted, value_text
from atrium.document.json import to_json
from atrium.views.files import SUFFIXES, rendered

_EXAMPLES = """\
TABLE is a CSV file with the columns method, benchmark, problems, samples, score, and optionally seeds,
evaluations, seed_sd and source. Scores are in percent, seed_sd in points. `evaluations` is the number of
evaluations on this benchmark from which the stated score is the best; 1 means no choice.

examples:
  atrium audit table.csv                           the first method is the baseline
  atrium audit table.csv --baseline grpo --effect 2
  atrium audit table.csv --evaluations 20 --seed-sd 1.5     values for missing entries
  atrium audit table.csv --out audit.html
"""


def main(argv: Sequence[str]) -> int:
    """Print the audit of a table; raise `ConfigError` for an invalid table."""
    parser = _parser()
    arguments = parser.parse(argv)
    suffix = Path(arguments.out or "").suffix.removeprefix(".")
    if arguments.out and suffix not in SUFFIXES:
        parser.error(f"--out {arguments.out}: the file name must end in .{', .'.join(SUFFIXES)}")
    from atrium.claim.published import read_published  # numpy
    from atrium.claim.published_document import audit_document, audited_pairs

    rows = read_published(arguments.table, num_evaluations=arguments.evaluations, seed_sd=arguments.seed_sd)
    methods = list(dict.fromkeys(row.method for row in rows))
    baseline = arguments.baseline or methods[0]
    if baseline not in methods:
        near = suggestion(baseline, methods) or f"; methods are {', '.join(methods)}"
        raise ConfigError(f"--baseline {baseline}: unknown method{near}")
    pairs = audited_pairs(rows, baseline, arguments.effect)
    assumed = []
    if arguments.evaluations is not None:
        assumed.append(f"best of {counted(arguments.evaluations, 'evaluation')}")
    if arguments.seed_sd is not None:
        assumed.append(f"a standard deviation over seeds of {value_text(arguments.seed_sd, 'points')} points")
    document = audit_document(rows, pairs, f"What {arguments.table.name} cannot establish", assumed=assumed)
    from atrium.views.terminal import print_document, print_json, standard_output  # rich

    if arguments.json:
        print_json(to_json(document))
    elif arguments.out or arguments.markdown:
        print_or_write(rendered(document, suffix or "md"), arguments.out)
    else:
        print_document(standard_output(), document)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "audit", "Show what a published comparison does not establish, and why.", _EXAMPLES
    )
    parser.add_argument("table", type=Path, metavar="TABLE", help="a CSV file of stated scores")
    parser.add_argument(
        "--baseline", metavar="METHOD", help="the baseline of all differences (default: the first method)"
    )
    parser.add_argument(
        "--effect", type=points, metavar="POINTS", help="difference to plan for (default: each reported one)"
    )
    parser.add_argument(
        "--evaluations",
        type=whole(1, 1_000_000),
        metavar="N",
        help="number of evaluations for rows without this value",
    )
    parser.add_argument(
        "--seed-sd",
        type=points,
        metavar="POINTS",
        help="standard deviation over seeds, for rows without this value",
    )
    parser.add_json("one JSON object with the document")
    parser.add_argument("--markdown", action="store_true", help="Markdown instead of tables for a terminal")
    parser.add_argument(
        "--out", metavar="FILE", help="write a page with a figure (.html), Markdown (.md) or LaTeX (.tex)"
    )
    return parser
