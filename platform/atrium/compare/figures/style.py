"""How figures look and are saved: colours, axes, and each figure as PNG and SVG.

Matplotlib's object interface with the Agg canvas only: no pyplot, no global state, no display.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from atrium.tracking.atomic import explained, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any colour vision tell apart; lines differ in their dashes too.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
BLACK, GREY, FAINT = "#1B1D20", "#5F6368", "#E3E5E8"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK, GREY)
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DPI = 144
ON_WHITE: dict[str, object] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
"""The box behind text that lines run under."""


def use_cache(cache_dir: Path) -> None:
    """Let matplotlib keep its caches below this folder, unless the environment says where."""
    os.environ.setdefault("MPLCONFIGDIR", str(cache_dir.absolute() / "matplotlib"))
    with explained("use the cache", cache_dir):
        Path(os.environ["MPLCONFIGDIR"]).mkdir(parents=True, exist_ok=True)


def new_figure(inches: tuple[float, float], layout: Literal["constrained"] | None = None) -> Figure:
    """An empty white figure."""
    # Matplotlib costs 0.4 s and reads MPLCONFIGDIR when it is imported.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=_DPI, facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Titles, labels and quiet lines for one panel."""
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.set_xlabel(x, fontsize=9, color=GREY)
    axes.set_ylabel(y, fontsize=9, color=GREY)
    axes.tick_params(labelsize=8, colors=GREY)
    axes.grid(visible=True, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#B8BCC2")


def line_style(index: int) -> tuple[str, str]:
    """The colour and dashes of the n-th line; the first 32 differ."""
    return COLOURS[index % len(COLOURS)], DASHES[(index + index // len(COLOURS)) % len(DASHES)]


def spread(values: Sequence[float], *, gap: float, least: float) -> list[float]:
    """Places for labels of points at these heights: in their order, `gap` apart, from `least` upwards."""
    placed = list(values)
    for index in sorted(range(len(placed)), key=placed.__getitem__):
        placed[index] = least = max(placed[index], least)
        least += gap
    return placed


def literal(text: str) -> str:
    """Text in which matplotlib finds no formulas."""
    return text.replace("$", r"\$")


def save_png(figure: Figure, folder: Path, name: str) -> Path:
    """Write NAME.png into a folder that is there."""
    with replacing(path := folder / f"{name}.png") as temporary:
        figure.savefig(temporary, format="png")
    return path


def save_both(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write NAME.png and NAME.svg into a folder, which is made; equal figures give equal files.

    Raises `RunFolderError` where the folder or the files cannot be written.
    """
    from matplotlib import rc_context

    svg = folder / f"{name}.svg"
    with explained("draw into", folder), rc_context({"svg.hashsalt": "atrium"}):
        folder.mkdir(parents=True, exist_ok=True)
        png = save_png(figure, folder, name)
        with replacing(svg) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
    return png, svg
