"""The style of figures: colors, axes, positions of labels, and conversion to SVG elements.

Figures use matplotlib's object interface with the Agg canvas. They use no pyplot and no display.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The first colors are from Okabe and Ito, for people with any color vision.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#C2528B"
BLACK, GREY, FAINT = "#1B1D20", "#5F6368", "#E3E5E8"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#6B5BD2", "#A67C00", "#3AA0D8", "#8A4B2A")
"""The colors of the palette (`document.palette`); the dashboard uses the same colors."""
DASHES = ("-", "--", "-.", ":")
_EDGE = "#B8BCC2"
_VARIABLES = {
    BLACK.lower(): "--ink",
    GREY.lower(): "--dim",
    FAINT.lower(): "--line",
    _EDGE.lower(): "--line",
    BLUE.lower(): "--accent",
}
"""Style sheet variables that replace these colors in a page, so that figures follow a dark theme."""
_TIP = "tip: "
FileKind = Literal["png", "svg", "pdf"]
_DPI = 144
LABEL_SIZE = 8
"""Size of text in points; ticks and legends are one point smaller."""


def use_cache(cache_dir: Path) -> None:
    """Set MPLCONFIGDIR, the location of matplotlib's cache, to a folder in `cache_dir`.

    Does nothing if the variable is already set, or if the folder cannot be created.
    """
    folder = cache_dir.absolute() / "matplotlib"
    with suppress(OSError):
        if "MPLCONFIGDIR" not in os.environ:
            folder.mkdir(parents=True, exist_ok=True)
            os.environ["MPLCONFIGDIR"] = str(folder)


def new_figure(inches: tuple[float, float]) -> Figure:
    """Return an empty white figure with a layout that leaves space for titles and labels."""
    # Importing matplotlib takes 0.4 s and reads MPLCONFIGDIR.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Set the title and axis labels of a panel, and its standard fonts, colors and grid."""
    axes.set_title(title, fontsize=LABEL_SIZE, loc="left", color=BLACK)
    axes.set_xlabel(x, fontsize=LABEL_SIZE, color=GREY)
    axes.set_ylabel(y, fontsize=LABEL_SIZE, color=GREY)
    axes.tick_params(which="both", labelsize=LABEL_SIZE - 1, colors=GREY)
    axes.grid(visible=True, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_EDGE)


def line_style(place: int) -> tuple[str, str]:
    """Return the color and dash style for a place in `document.palette`. Styles repeat after 32 places."""
    return COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]


def spread(values: Sequence[float], *, gap: float, least: float) -> list[float]:
    """Return positions for labels at the heights `values`, moved up where labels would overlap.

    The positions are at least `gap` apart and not below `least`. They are in the order of `values`.
    """
    placed = list(values)
    for index in sorted(range(len(placed)), key=placed.__getitem__):
        placed[index] = least = max(placed[index], least)
        least += gap
    return placed


def tip(text: str) -> str:
    """Return a `gid` for a matplotlib artist, which `inline_svg` turns into a tooltip with this text."""
    return _TIP + text


def inline_svg(figure: Figure, label: str) -> str:
    """Return the figure as an `<svg>` element with colors from variables of the page's style sheet.

    `label` is the accessible name of the figure.
    """
    from matplotlib import rc_context

    file, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # The label salts the hashed ids, since figures of a page must not share ids.
    settings: Any = {"svg.hashsalt": label, "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the browser has its own fonts
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    text = re.sub(rf'<g id="{_TIP}([^"]*)"([^>]*)>', r"<g\2><title>\1</title>", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for colour, variable in _VARIABLES.items():
        text = re.sub(f"(fill|stroke): {colour}", rf"\1: var({variable})", text)
    return text


def literal(text: str) -> str:
    """Return the text with `$` escaped, so that matplotlib does not parse it as a formula."""
    return text.replace("$", r"\$")
