"""`atrium objectives`: a table of the shipped methods, or all settings of one or several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from atrium.catalog.document import methods_document, side_by_side_document
from atrium.catalog.methods import described
from atrium.catalog.page import methods_page
from atrium.cli.parser import CommandParser, print_or_write
from atrium.config.method_files import resolve_preset
from atrium.config.presets import Preset, read_presets
from atrium.document.document import Sentence
from atrium.views.terminal import print_document, print_json, standard_output

_EXAMPLES = """\
examples:
  atrium objectives                      every method of conf/algorithm
  atrium objectives atr gspo             two side by side, differences marked with ≠
  atrium objectives grpo dapo --different
  atrium objectives --markdown --out docs/methods.md
"""


def main(argv: Sequence[str]) -> int:
    """Print the methods; raise `ConfigError` for an unknown name."""
    parser = CommandParser(
        "objectives",
        "Show methods as choices on the axes of an objective: all of them, or the named ones side by side.",
        _EXAMPLES,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="ALG",
        help="names of files in conf/algorithm, or paths to your own (default: all)",
    )
    parser.add_argument("--different", action="store_true", help="show only settings that differ")
    parser.add_json("one JSON object with every setting")
    parser.add_argument("--markdown", action="store_true", help="print the page docs/methods.md")
    parser.add_argument("--out", metavar="FILE", help="with --markdown: write the page to FILE")
    arguments = parser.parse(argv)
    if arguments.out and not arguments.markdown:
        parser.error("--out requires --markdown")
    if arguments.different and len(arguments.names) < 2:
        parser.error("--different requires at least two methods")
    names = tuple(dict.fromkeys(arguments.names))
    presets = tuple(map(resolve_preset, names)) if names else read_presets()
    if arguments.markdown:
        print_or_write(methods_page(presets), arguments.out)
    elif arguments.json:
        print_json(described(presets))
    elif names:
        shown = side_by_side_document(presets, only_different=arguments.different)
        print_document(standard_output(), replace(shown, answer=_alike(presets)))
    else:
        print_document(standard_output(), methods_document(presets))
    return 0


def _alike(presets: Sequence[Preset]) -> tuple[Sentence, ...]:
    """Return sentences that state which methods have the same gradients.

    The result is empty for a single method, and if torch is not installed.
    """
    if len(presets) < 2 or find_spec("torch") is None:
        return ()
    from atrium.theory.atlas_document import alike_sentences

    return alike_sentences({preset.name: preset.method for preset in presets})
