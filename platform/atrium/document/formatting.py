"""Formatting of numbers by unit, of durations, sizes and sparklines, and of text for a terminal."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atrium.document.document import Unit

DASH = "–"
"""Text for an unknown value."""
MINUS = "\N{MINUS SIGN}"
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return a curve as text of at most `width` characters; each shows the mean of a part of the values.

    Values that are not finite are ignored. A part without finite values is a space, and the text is empty if
    no value is finite. A constant curve is a line at the bottom.
    """
    num_parts = min(width, len(values))
    means: list[float | None] = []
    for part in range(num_parts):
        start, stop = part * len(values) // num_parts, (part + 1) * len(values) // num_parts
        finite = [value for value in values[start:stop] if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else None)
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    # Means of equal values may differ in their last bits; the curve still counts as constant.
    is_flat = high - low <= 1e-9 * max(abs(low), abs(high))
    top = len(_BARS) - 1
    return "".join(
        " " if mean is None else _BARS[0 if is_flat else round((mean - low) / (high - low) * top)]
        for mean in means
    )


def value_text(value: float | None, unit: Unit = "", *, is_signed: bool = False) -> str:
    """Format a number as its unit requires; return a dash for None and NaN.

    Shares and points are in percent with one decimal, without the percent sign. A p-value has three decimals,
    or is `<0.001`. A fraction has two decimals, a ratio three, a bound six, and a count none. Seconds have
    one decimal below ten, and are formatted by `duration` otherwise. Bytes are formatted by `size`, and all
    other numbers by `number`. With `is_signed`, a positive number has a plus sign. Zero never has a sign.
    """
    if value is None or math.isnan(value):
        return DASH
    text = "∞" if math.isinf(value) else _magnitude(abs(value), unit)
    if not text.strip("0. sB"):
        return text
    return (MINUS if value < 0 else "+" if is_signed else "") + text


def _magnitude(value: float, unit: Unit) -> str:
    match unit:
        case "share" | "points":
            return f"{100 * value:.1f}"
        case "p":
            return "<0.001" if value < 0.001 else f"{value:.3f}"
        case "fraction":
            return f"{value:.2f}"
        case "ratio":
            return f"{value:.3f}"
        case "bound":
            return f"{value:.6f}"
        case "count":
            return f"{value:,.0f}"
        case "seconds":
            return duration(value) if value >= 10 else f"{value:.1f} s"
        case "bytes":
            return size(value)
        case _:
            return number(value)


def interval_text(interval: tuple[float, float], unit: Unit = "", *, is_signed: bool = False) -> str:
    """Format an interval, such as `[30.1, 38.3]`, or `[-0.3, +4.5]` with `is_signed`."""
    low, high = (value_text(end, unit, is_signed=is_signed) for end in interval)
    return f"[{low}, {high}]"


def share(value: float | None) -> str:
    """Format a share as a percentage with one decimal, such as `88.2 %`; return a dash for None and NaN."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def span(interval: tuple[float, float] | None) -> str:
    """Format an interval of shares in percent, such as `[84.9, 91.5]`, or return an empty text for None."""
    return "" if interval is None else f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def number(value: float | None) -> str:
    """Format a number with three significant digits; return a dash for None and NaN.

    Numbers with a magnitude of at least 1,000 are rounded to an integer instead. Magnitudes of at least
    100,000, and nonzero magnitudes below 0.001, are written with three significant digits and an exponent.
    """
    if value is None or math.isnan(value):
        return "–"
    if value == 0 or 0.001 <= abs(value) < 100_000:
        return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
    return f"{value:.2e}"


def duration(seconds: float) -> str:
    """Format a duration, such as `8 s`, `3:25` or `2:03:25`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def age(seconds: float) -> str:
    """Format the time since an event as text without "ago": `just now`, `5 min`, `3 h` or `12 days`."""
    for size, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size * (2 if unit == "days" else 1):
            return f"{seconds / size:.0f} {unit}"
    return "just now"


def size(num_bytes: float) -> str:
    """Format a number of bytes, such as `404 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{number(num_bytes)} TB"


def counted(num: int | str | None, noun: str) -> str:
    """Format a count with its noun in singular or plural, such as `1 seed` or `8 seeds`."""
    return f"{num} {noun}{'' if str(num) == '1' else 's'}"


def printable(text: str) -> str:
    """Return text that is safe to print: control and formatting characters are replaced by their code.

    Such characters could control the terminal or reverse the text. Line breaks and tabs are kept.
    """
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs")
        else f"\\x{ord(character):02x}"
        for character in text
    )


def shortened(text: str, width: int) -> str:
    """Return the text; if it is longer than `width` characters, an ellipsis replaces its middle."""
    if len(text) <= width:
        return text
    head = (width - 3) * 2 // 3
    return f"{text[:head]} … {text[len(text) - (width - 3 - head) :]}"
