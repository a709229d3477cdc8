"""`atrium objectives`: the shipped methods as a table of axes, one in full, or several side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atrium.base.atomic import write_text
from atrium.base.errors import RunFolderError
from atrium.catalog.axes import axes
from atrium.catalog.methods import described, differs, side_by_side
from atrium.catalog.page import methods_page
from atrium.cli.parser import CommandParser
from atrium.config.method_files import resolve_preset
from atrium.config.presets import Preset, read_presets
from atrium.document import document
from atrium.views.terminal import print_json, print_table, say, standard_output, tell

_WINDOW = "window [l, u]"
_ALWAYS = ("advantage", "ratio", "divergence", _WINDOW, "surrogate", "reduction")
"""Axes with a column of their own; what a method chooses on the others stands in the last column."""
_HIDDEN = ("on policy",)
_MIN_WIDTH = 130
"""Columns of a terminal below which axes share a column: narrower ones would split words."""
_MARK = "≠"
_GAP = 2
_EXAMPLES = """\
examples:
  atrium objectives                      every method of conf/algorithm
  atrium objectives atr gspo             two side by side, what differs marked with ≠
  atrium objectives grpo dapo --different
  atrium objectives --markdown --out docs/methods.md
"""


def main(argv: Sequence[str]) -> int:
    """Print the methods, or raise `ConfigError` for a name that is none."""
    parser = CommandParser(
        "objectives",
        "Show methods as choices on the axes of an objective: all of them, or the named ones side by side.",
        _EXAMPLES,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="ALG",
        help="files of conf/algorithm by name, or of your own by path (default: all)",
    )
    parser.add_argument("--different", action="store_true", help="side by side: only settings that differ")
    parser.add_argument("--json", action="store_true", help="one JSON object with every setting")
    parser.add_argument("--markdown", action="store_true", help="the page docs/methods.md")
    parser.add_argument("--out", metavar="FILE", help="with --markdown: write it there")
    arguments = parser.parse(argv)
    if arguments.out and not arguments.markdown:
        parser.error("--out goes with --markdown")
    if arguments.different and len(arguments.names) < 2:
        parser.error("--different compares: name two methods or more")
    names = tuple(dict.fromkeys(arguments.names))
    presets = tuple(map(resolve_preset, names)) if names else read_presets()
    if arguments.markdown:
        _write_page(methods_page(presets), arguments.out)
    elif arguments.json:
        print_json(described(presets))
    elif names:
        _print_side_by_side(presets, standard_output(), only_different=arguments.different)
    else:
        _print_table(presets, standard_output())
    return 0


def _print_table(presets: Sequence[Preset], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    table.add_column("method", no_wrap=True, style="bold")
    is_wide = console.width >= _MIN_WIDTH
    for title in (*_ALWAYS, "and") if is_wide else (_WINDOW, "choices"):
        width = 16 if title == _WINDOW else None
        table.add_column(title, overflow="fold", min_width=width, max_width=None if is_wide else width)
    for preset in presets:
        chosen = axes(preset)
        others = [
            f"{title}: {text}" for title, text in chosen.items() if text and title not in (*_ALWAYS, *_HIDDEN)
        ]
        cells = [chosen[title] for title in _ALWAYS]
        if is_wide:
            cells += ["; ".join(others)]
        else:
            choices = [
                f"{title} none" if chosen[title] == "none" else chosen[title]
                for title in _ALWAYS
                if title != _WINDOW
            ]
            cells = [chosen[_WINDOW], "; ".join([*choices, *others])]
        table.add_row(preset.name, *(Text(_broken(text)) for text in cells))
    console.print(table)
    console.print()
    note = (
        f"{len(presets)} methods. `atrium objectives ALG [ALG ...]` shows every setting; "
        "`atrium windows` says which windows coincide; docs/methods.md has papers and deviations."
    )
    tell(console, note, "dim")


def _broken(text: str) -> str:
    """A cell that breaks between words: names without underscores, numbers without their keys."""
    return re.sub(r"\b[a-z_]+=(?=[\d.])", "", text).replace("_", " ")


def _print_side_by_side(presets: Sequence[Preset], console: Console, *, only_different: bool) -> None:
    for preset in presets:
        say(console, preset.name, "bold")
        for sentence in _sentences(preset.file.header):
            tell(console, sentence, "dim")
        console.print()
    rows = side_by_side(presets)
    different = {key for key, values in rows.items() if differs(values)}
    shown = {key: values for key, values in rows.items() if key in different or not only_different}
    names = [preset.name for preset in presets]
    room = console.width if console.is_terminal else sys.maxsize
    width = max(map(len, [*names, *(value for values in shown.values() for value in values)])) + _GAP
    lines = [(_marked(key, different), *values) for key, values in shown.items()]
    if max(len(key) for key, *_ in lines) + width * len(names) > room:
        lines = _by_section(shown, different)
    num = max((room - max(len(key) for key, *_ in lines)) // width, 1)
    for first in range(0, len(names), num):
        chosen = slice(first, first + num)
        table = [(key, *values[chosen]) for key, *values in lines]
        columns = tuple(document.Column(title, is_text=True) for title in ("   setting", *names[chosen]))
        shown_rows = tuple(document.Row(row, is_strong=row[0].startswith(_MARK)) for row in table)
        print_table(console, document.Table(title="", columns=columns, rows=shown_rows))
        console.print()
    if len(presets) > 1:
        console.print(Text(f"{len(different)} of {len(rows)} rows differ ({_MARK})", "dim"))


def _sentences(header: str) -> list[str]:
    """What a file's header says, without the ends of lines within a sentence."""
    return re.sub(r"(?<![.:])\n", " ", header).splitlines()


def _marked(key: str, different: Collection[str], shown: str = "") -> str:
    return f"{_MARK if key in different else ' '}  {shown or key}"


def _by_section(rows: Mapping[str, Sequence[str]], different: Collection[str]) -> list[tuple[str, ...]]:
    """Rows by the last part of their keys, below a line that names the section: half as wide."""
    lines: list[tuple[str, ...]] = []
    section = ""
    for key, values in rows.items():
        parent, _, last = key.rpartition(".")
        if parent and parent != section:
            lines.append((f"   {parent}", *("" for _ in values)))
        section = parent
        lines.append((_marked(key, different, f"  {last}" if parent else key), *values))
    return lines


def _write_page(page: str, path: str | None) -> None:
    if path is None:
        sys.stdout.write(page)
        return
    try:
        write_text(Path(path), page)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}; choose another --out"
        ) from error
    sys.stdout.write(f"wrote {path}\n")
