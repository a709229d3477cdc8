"""`atrium theory`: checks of theorems for any methods, on policies small enough to enumerate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from atrium.cli.parser import CommandParser, present, whole
from atrium.config.method_files import resolve_preset
from atrium.views.terminal import waiting

DEFAULT = ("grpo", "clip_higher", "atr", "cispo", "sapo", "gvpo")
"""Plain clipping, a wider clip range, KL3, a clipped weight, a soft gate, and a regression."""
PARTS = ("gradients", "windows", "updates", "bias", "gvpo")
_EXAMPLES = """\
examples:
  atrium theory                          grpo, clip_higher, atr, cispo, sapo, gvpo
  atrium theory atr gspo dppo_binary_tv  any methods of conf/algorithm
  atrium theory atr grpo --only updates --seeds 64
"""


def main(argv: Sequence[str]) -> int:
    """Compute, print and draw the findings; raise `ConfigError` for an unknown method."""
    parser = CommandParser(
        "theory",
        "Check theorems about methods on a softmax policy small enough to enumerate: gradients of tokens\n"
        "(Theorems 4.1 and 4.2 of ATR-GRPO), the asymmetry of windows, changes of probability and entropy\n"
        "during several updates on one batch, the bias of token-level gradients, and GVPO's Theorems 1 to 3.",
        _EXAMPLES,
    )
    parser.add_argument(
        "names", nargs="*", metavar="ALG", help="names of files in conf/algorithm, or paths to your own"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="compute only this part (repeatable)")
    parser.add_argument(
        "--seeds", type=whole(2), default=8, metavar="N", help="batches per method (default: 8)"
    )
    parser.add_figures()
    arguments = parser.parse(argv)
    methods = [resolve_preset(name).method for name in dict.fromkeys(arguments.names or DEFAULT)]
    parts = tuple(part for part in PARTS if part in (arguments.only or PARTS))

    # These modules import torch, so they are loaded after the arguments are checked.
    from atrium.theory.document import theory_document
    from atrium.theory.figures import pictures
    from atrium.theory.findings import find

    with waiting("computing on enumerated policies"):
        findings = find(methods, parts, num_seeds=arguments.seeds)
    found = {name: value for name, value in dataclasses.asdict(findings).items() if value}
    present(arguments, found, lambda: theory_document(findings), lambda: pictures(findings))
    return 0
