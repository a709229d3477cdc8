"""How figures look: colours, axes, places of labels, and a figure as an element of a page.

Matplotlib's object interface with the Agg canvas only: no pyplot, no global state, no display.
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

# Okabe and Ito's colours come first, which people with any colour vision tell apart.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#C2528B"
BLACK, GREY, FAINT = "#1B1D20", "#5F6368", "#E3E5E8"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#6B5BD2", "#A67C00", "#3AA0D8", "#8A4B2A")
"""The hues of `document.palette`, which the dashboard has too."""
DASHES = ("-", "--", "-.", ":")
_EDGE = "#B8BCC2"
_VARIABLES = {
    BLACK.lower(): "--ink",
    GREY.lower(): "--dim",
    FAINT.lower(): "--line",
    _EDGE.lower(): "--line",
    BLUE.lower(): "--accent",
}
"""What a page's style sheet calls these colours, which it has for a dark look too."""
_TIP = "tip: "
FileKind = Literal["png", "svg", "pdf"]
_DPI = 144
LABEL_SIZE = 8
"""The size of text in points; ticks and legends are a point smaller."""


def use_cache(cache_dir: Path) -> None:
    """Let matplotlib keep its caches below this folder, if it can be made and the environment names none."""
    folder = cache_dir.absolute() / "matplotlib"
    with suppress(OSError):
        if "MPLCONFIGDIR" not in os.environ:
            folder.mkdir(parents=True, exist_ok=True)
            os.environ["MPLCONFIGDIR"] = str(folder)


def new_figure(inches: tuple[float, float]) -> Figure:
    """An empty white figure, whose panels leave room for their texts."""
    # Matplotlib costs 0.4 s and reads MPLCONFIGDIR when it is imported.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Titles, labels and quiet lines for one panel."""
    axes.set_title(title, fontsize=LABEL_SIZE, loc="left", color=BLACK)
    axes.set_xlabel(x, fontsize=LABEL_SIZE, color=GREY)
    axes.set_ylabel(y, fontsize=LABEL_SIZE, color=GREY)
    axes.tick_params(labelsize=LABEL_SIZE - 1, colors=GREY)
    axes.grid(visible=True, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_EDGE)


def line_style(place: int) -> tuple[str, str]:
    """The colour and dashes at a place of `document.palette`, or of the n-th line; the first 32 differ."""
    return COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]


def spread(values: Sequence[float], *, gap: float, least: float) -> list[float]:
    """Places for labels of points at these heights: in their order, `gap` apart, from `least` upwards."""
    placed = list(values)
    for index in sorted(range(len(placed)), key=placed.__getitem__):
        placed[index] = least = max(placed[index], least)
        least += gap
    return placed


def tip(text: str) -> str:
    """The name of an artist over which a browser shows this text (`gid`), in figures of `inline_svg`."""
    return _TIP + text


def inline_svg(figure: Figure, label: str) -> str:
    """The figure as an element of an HTML page, whose style sheet gives neutral colours and the accent."""
    from matplotlib import rc_context

    file, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # No two figures of a page may share the names of what they refer to: they are hashes salted by the label.
    settings: Any = {"svg.hashsalt": label, "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the browser has fonts of its own
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    text = re.sub(rf'<g id="{_TIP}([^"]*)"([^>]*)>', r"<g\2><title>\1</title>", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for colour, variable in _VARIABLES.items():
        text = re.sub(f"(fill|stroke): {colour}", rf"\1: var({variable})", text)
    return text


def literal(text: str) -> str:
    """Text in which matplotlib finds no formulas."""
    return text.replace("$", r"\$")
