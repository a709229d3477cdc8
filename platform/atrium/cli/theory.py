"""`atrium theory`: what the theorems say about any methods, computed on a policy that can be enumerated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from atrium.cli.parser import CommandParser, present, whole
from atrium.config.method_files import resolve_preset
from atrium.views.terminal import waiting

DEFAULT = ("grpo", "clip_higher", "atr", "cispo", "sapo", "gvpo")
"""Plain clipping, a wider one, KL3, a clipped weight, a soft gate, a regression."""
PARTS = ("gradients", "windows", "updates", "bias", "gvpo")
_EXAMPLES = """\
examples:
  atrium theory                          grpo, clip_higher, atr, cispo, sapo, gvpo
  atrium theory atr gspo dppo_binary_tv  any methods of conf/algorithm
  atrium theory atr grpo --only updates --seeds 64
"""


def main(argv: Sequence[str]) -> int:
    """Compute, print and draw; `ConfigError` for a name that is no method."""
    parser = CommandParser(
        "theory",
        "Show what the theorems say about methods, on a softmax policy small enough to enumerate: which\n"
        "gradient a token gets (Theorems 4.1 and 4.2 of ATR-GRPO), how asymmetric windows are, where\n"
        "probability and entropy go when a batch is used again, how biased token-level gradients are, and\n"
        "GVPO's Theorems 1 to 3.",
        _EXAMPLES,
    )
    parser.add_argument(
        "names", nargs="*", metavar="ALG", help="files of conf/algorithm, or your own by path"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given several times")
    parser.add_argument(
        "--seeds", type=whole(2), default=8, metavar="N", help="batches per method (default: 8)"
    )
    parser.add_figures()
    arguments = parser.parse(argv)
    methods = [resolve_preset(name).method for name in dict.fromkeys(arguments.names or DEFAULT)]
    parts = tuple(part for part in PARTS if part in (arguments.only or PARTS))

    # They import torch, after every mistake has been found.
    from atrium.theory.document import theory_document
    from atrium.theory.figures import pictures
    from atrium.theory.findings import find

    with waiting("computing on policies that are enumerated"):
        findings = find(methods, parts, num_seeds=arguments.seeds)
    found = {name: value for name, value in dataclasses.asdict(findings).items() if value}
    present(arguments, found, lambda: theory_document(findings), lambda: pictures(findings))
    return 0
