"""Sheets of figures: panels with titles, axes and a legend, as SVG elements or as files."""

from __future__ import annotations

import io
import textwrap
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrium.base.atomic import explained, replacing
from atrium.document.document import Bars, Figure, Grid, Intervals, Lines, Picture, Plane
from atrium.views.figures.lines import draw_lines
from atrium.views.figures.plane import draw_plane
from atrium.views.figures.rows import draw_bars, draw_grid, draw_intervals
from atrium.views.figures.style import (
    BLACK,
    LABEL_SIZE,
    FileKind,
    inline_svg,
    literal,
    new_figure,
    style,
    use_cache,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

MEDIA_TYPES: Mapping[FileKind, str] = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
}
COLUMN_INCHES = {1: 3.35, 2: 6.9}
"""Width in inches of one column of a paper (85 mm) and of two columns (175 mm)."""
_PAGE_INCHES = 8.6
_PICTURE_INCHES = {1: 6.4, 2: 9.2, 3: 12.0, 4: 12.8}
"""Width in inches of a saved picture, by its number of columns."""
_CHARACTERS, _NAME = 14.0, 5.6
"""Characters per inch of figure width, for titles and for row names."""
_LINE = 0.155
"""Height of a line of text in inches."""
_PRINT_DPI = 300
_drawing = threading.Lock()
"""A lock, since matplotlib's settings are global to the process and the dashboard draws in threads."""


def svg(figure: Figure) -> str:
    """Return the figure as an `<svg>` element.

    It has no title and no caption, because the page shows them as text.
    """
    with _drawing:
        return inline_svg(sheet([figure], inches=_PAGE_INCHES, is_titled=False), figure.title)


def file(figures: Sequence[Figure], kind: FileKind, *, inches: float, title: str = "") -> bytes:
    """Return the content of an image file with the figures side by side, `inches` wide in total.

    The content is deterministic.
    """
    with _drawing:
        return _saved(sheet(figures, inches=inches, title=title, num_columns=len(figures)), kind, _PRINT_DPI)


def sheet(
    figures: Sequence[Figure],
    *,
    inches: float,
    title: str = "",
    num_columns: int = 1,
    is_titled: bool = True,
) -> Drawn:
    """Draw the figures as panels, row by row, `inches` wide in total.

    If all panels have the same legend, it is drawn only once.
    """
    rows = [figures[start : start + num_columns] for start in range(0, len(figures), num_columns)]
    width = inches / num_columns
    heights = [max(_height(figure, width) for figure in row) for row in rows]
    above = [line for part in title.splitlines() for line in textwrap.wrap(part, int(inches * _CHARACTERS))]
    drawn = new_figure((inches, 1.0))
    panels = list(drawn.subplots(len(rows), num_columns, squeeze=False, height_ratios=heights).flat)
    for panel, figure, height in zip(
        panels, figures, [height for height in heights for _ in range(num_columns)], strict=False
    ):
        draw(panel, figure, (width, height), is_titled=is_titled)
    for panel in panels[len(figures) :]:
        panel.set_axis_off()
    curves = [panel for panel, one in zip(panels, figures, strict=False) if isinstance(one, Lines | Plane)]
    num_lines = _add_legend(drawn, curves, inches)
    drawn.set_figheight(sum(heights) + _LINE * (num_lines + 1.3 * len(above)))
    if above:
        text = literal("\n".join(above))
        drawn.suptitle(text, x=0.01, ha="left", fontsize=LABEL_SIZE + 1, fontweight="bold", color=BLACK)
    return drawn


def draw(axes: Axes, figure: Figure, inches: tuple[float, float], *, is_titled: bool) -> None:
    """Draw a figure of any kind on axes. `inches` is the approximate width and height of the axes."""
    length, name_width = _characters(figure, inches[0]), int(inches[0] * _NAME)

    def folded(text: str) -> str:
        return literal("\n".join(textwrap.fill(line, length) for line in text.splitlines()))

    style(
        axes,
        title=folded(f"{figure.title}\n{figure.caption}") if is_titled else "",
        x=folded(figure.x.title),
        y=literal(textwrap.fill(figure.y.title, 34)),
    )
    match figure:
        case Lines():
            draw_lines(axes, figure)
        case Plane():
            draw_plane(axes, figure, inches[1], name_width)
        case Intervals():
            draw_intervals(axes, figure, name_width)
        case Bars():
            draw_bars(axes, figure, name_width)
        case Grid():
            draw_grid(axes, figure, name_width)


def _height(figure: Figure, inches: float) -> float:
    """Return the height in inches of a panel that is `inches` wide, including its titles."""
    length = _characters(figure, inches)
    titles = sum(len(textwrap.wrap(text, length)) for text in (figure.title, figure.caption, figure.x.title))
    match figure:
        case Intervals() | Bars():
            names, least = [row.name for row in figure.rows], 0.24
        case Grid():
            names, least = list(figure.rows), 0.24
        case Plane():
            return max(_axes_height(inches), 0.2 * len(figure.points)) + _LINE * titles
        case _:
            return _axes_height(inches) + _LINE * titles
    num_lines = [len(textwrap.wrap(name, int(inches * _NAME))) for name in names]
    return sum(max(_LINE * num, least) for num in num_lines) + _LINE * (titles + 3)


def _characters(figure: Figure, inches: float) -> int:
    """Return the number of characters that fit in a line above the axes of a panel `inches` wide."""
    return int(inches * _CHARACTERS * (1.0 if isinstance(figure, Lines) else 0.7))


def _axes_height(inches: float) -> float:
    return min(max(0.45 * inches, 2.0), 3.4)


def _add_legend(drawn: Drawn, curves: Sequence[Axes], inches: float) -> int:
    """Add one legend below all panels if all `curves` have equal legends; return its number of lines.

    Otherwise, add a legend to each panel and return 0.
    """
    found = [panel.get_legend_handles_labels() for panel in curves]
    if not any(labels for _, labels in found):
        return 0
    handles, labels = found[0]
    if any(others != labels for _, others in found):
        for panel, (_, own) in zip(curves, found, strict=True):
            if own:
                panel.legend(frameon=False, fontsize=LABEL_SIZE - 1)
        return 0
    columns = max(min(int(inches * 16) // (max(map(len, labels)) + 8), len(labels)), 1)
    drawn.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=LABEL_SIZE - 1
    )
    return -(-len(labels) // columns)


def save(
    pictures: Sequence[Picture],
    folder: Path,
    cache_dir: Path,
    kinds: Sequence[FileKind] = ("png", "svg"),
) -> list[Path]:
    """Write each picture to a folder, as one file of each kind, and return the paths.

    Files are deterministic. `cache_dir` is the parent of matplotlib's cache. Raises `RunFolderError` if
    the folder or a file cannot be written.
    """
    use_cache(cache_dir)
    paths = []
    with explained("draw into", folder), _drawing:
        folder.mkdir(parents=True, exist_ok=True)
        for one in pictures:
            inches = _PICTURE_INCHES[one.num_columns]
            drawn = sheet(one.figures, inches=inches, title=one.title, num_columns=one.num_columns)
            for kind in kinds:
                paths.append(folder / f"{one.name}.{kind}")
                with replacing(paths[-1]) as temporary:
                    temporary.write_bytes(_saved(drawn, kind, drawn.dpi))
    return paths


def _saved(drawn: Drawn, kind: FileKind, dpi: float) -> bytes:
    """Return the drawing as the content of a file, without dates so that the content is deterministic."""
    from matplotlib import rc_context

    settings: Any = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "atrium"}
    dates = {"svg": "Date", "pdf": "CreationDate"}
    content = io.BytesIO()
    with rc_context(settings):
        metadata = {dates[kind]: None} if kind in dates else None
        drawn.savefig(content, format=kind, dpi=dpi, metadata=metadata)
    return content.getvalue()
