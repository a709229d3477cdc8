"""The documents of `atrium objectives` and `atrium windows`.

The document of `atrium objectives` lists methods by their choices, or compares all settings of several
methods. The document of `atrium windows` lists the windows of divergences at given budgets, the budgets that
match a clip range, and the windows that coincide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from atrium.catalog.axes import axes
from atrium.catalog.methods import WINDOW, differs, side_by_side
from atrium.catalog.windows import PROBABILITIES, Arm, Match, coinciding, families
from atrium.config.presets import Preset, read_presets
from atrium.document.document import (
    Cell,
    Column,
    Document,
    Row,
    Section,
    Sentence,
    Table,
    Value,
    plain_table,
    table_document,
)
from atrium.method.windows import Window
from atrium.method.words import interval, window_text

_NAMED_BY_VALUE = ("advantage", "ratio", "divergence", "surrogate", "reduction")
"""Axes whose choices are shown without the axis's name."""
_MARK = "≠"


def methods_document(presets: Sequence[Preset]) -> Document:
    """Return a document with a table of the methods: their windows, and the choices that `axes` describes."""
    rows = []
    for preset in presets:
        chosen = axes(preset)
        window = chosen.pop(WINDOW)
        del chosen["on policy"]
        choices = [
            text if title in _NAMED_BY_VALUE and not text.startswith("none") else f"{title} {text}"
            for title, text in chosen.items()
            if text
        ]
        rows.append(Row((preset.name, window, "; ".join(choices))))
    table = Table(
        title="",
        columns=(Column("method"), Column(WINDOW, is_text=True), Column("choices", is_text=True)),
        rows=tuple(rows),
        note=f"{len(presets)} methods. `atrium objectives ALG [ALG ...]` shows all settings, "
        "`atrium windows` coinciding windows, and docs/methods.md papers and deviations.",
    )
    return table_document("methods", "Methods", table)


def side_by_side_document(presets: Sequence[Preset], *, only_different: bool) -> Document:
    """Return a document with the methods' header comments and a table of their settings.

    Settings in which the methods differ are marked. With `only_different`, equal settings are left out.
    """
    found = side_by_side(presets)
    different = {key for key, values in found.items() if differs(values)}
    table = Table(
        title="",
        columns=(Column("   setting"), *(Column(preset.name, is_text=True) for preset in presets)),
        rows=tuple(
            Row((f"{_MARK if key in different else ' '}  {key}", *values), is_strong=key in different)
            for key, values in found.items()
            if key in different or not only_different
        ),
        note=f"{len(different)} of {len(found)} rows differ ({_MARK})" if len(presets) > 1 else "",
    )
    return Document(
        key="side-by-side",
        title="Methods side by side",
        sections=(
            *(Section(title=preset.name, sentences=_said_of(preset)) for preset in presets),
            Section(title="Settings", tables=(table,)),
        ),
    )


def _said_of(preset: Preset) -> tuple[Sentence, ...]:
    """Return the header comment of a method's file, with the lines of each sentence joined."""
    lines = re.sub(r"(?<![.:])\n", " ", preset.file.header).splitlines()
    return tuple(Sentence(line, "muted") for line in lines)


def windows_document(
    arms: Sequence[Arm], matches: Sequence[Match], clip: Window, *, budget: float | None
) -> Document:
    """Return a document with the arms' windows and the budgets that match the clip range `clip`.

    `budget` is the budget shared by all arms, or None if each arm has its own budget.
    """
    tables = [_at_budgets(arms, budget), _by_probability(arms), _matched(matches, clip)]
    return Document(
        key="windows",
        title="Windows",
        sections=(
            Section(title="Windows", tables=tuple(table for table in tables if table.rows)),
            Section(
                title="The same method (l and u to ten digits)", sentences=tuple(_same(arms, matches, clip))
            ),
        ),
    )


def _at_budgets(arms: Sequence[Arm], budget: float | None) -> Table:
    titles = ("divergence", "budget δ", "l", "u", "1 - l", "u - 1", "-log l", "log u", "D''(1)")
    note = "equal budgets give different trust regions if the divergences differ in curvature D''(1)"
    without = "no window on the ratio (whole distributions or completions)"
    for text, title in {"by minibatch": "a window for each minibatch", "none": without}.items():
        if names := [arm.name for arm in arms if window_text(arm.config) == text]:
            note += f"; {title}: {', '.join(names)}"
    where = "the budgets of their files" if budget is None else f"budget {budget:g}"
    return plain_table(
        f"windows at {where}: D(w) ≤ δ is equivalent to l ≤ w ≤ u",
        titles,
        [_at_budget(arm, arm.window) for arm in arms if arm.window is not None],
        note,
    )


def _at_budget(arm: Arm, window: Window) -> tuple[Cell, ...]:
    is_start = arm.config.kind == "balanced_window"  # BAPO changes it in each minibatch
    curvature = None if arm.config.of_ratio is None else arm.config.of_ratio.curvature
    is_kink = arm.config.of_ratio is not None and curvature is None
    bounds = (
        window.lower,
        window.upper,
        1.0 - window.lower,
        window.upper - 1.0,
        math.inf if window.lower == 0.0 else -math.log(window.lower),
        math.log(window.upper) if math.isfinite(window.upper) else math.inf,
    )
    return (
        f"{arm.name} (start)" if is_start else arm.name,
        "" if arm.delta is None else f"{arm.delta:.6g}",
        *(Value(bound, "bound") for bound in bounds),
        "kink" if is_kink else "" if curvature is None else f"{curvature:g}",
    )


def _by_probability(arms: Sequence[Arm]) -> Table:
    rows = []
    for arm in arms:
        if arm.config.has_token_windows:
            found = [arm.config.window_at(q) for q in PROBABILITIES]
            rows.append((arm.name, *("" if one is None else interval(one, 3) for one in found)))
    return plain_table(
        "windows that depend on the token's behavior probability q",
        ("divergence", *(f"q = {q:g}" for q in PROBABILITIES)),
        rows,
    )


def _matched(matches: Sequence[Match], clip: Window) -> Table:
    lower, upper = clip.lower, clip.upper
    titles = ("divergence", f"δ for u = {upper:g}", "resulting l", f"δ for l = {lower:g}", "resulting u")
    rows = [
        (
            match.name,
            None if match.budget_at_upper is None else f"{match.budget_at_upper:.6g}",
            None if match.lower is None else Value(match.lower, "bound"),
            f"{match.budget_at_lower:.6g}",
            Value(match.upper, "bound"),
        )
        for match in matches
    ]
    return plain_table(f"budgets that match the clip range [{lower:g}, {upper:g}]", titles, rows)


def _same(arms: Sequence[Arm], matches: Sequence[Match], clip: Window) -> list[Sentence]:
    at_upper = [(match.name, Window(match.lower, clip.upper)) for match in matches if match.lower is not None]
    at_lower = [(match.name, Window(clip.lower, match.upper)) for match in matches]
    found = [
        Sentence(f"the same method {where}: {'   '.join(map(' = '.join, coinciding(named))) or 'none'}")
        for where, named in (
            ("at these budgets", [(arm.name, arm.window) for arm in arms]),
            ("if matched at u", at_upper),
            ("if matched at l", at_lower),
        )
    ]
    for members in families(read_presets()):
        texts = [f"{preset.name} {window_text(preset.divergence)}" for preset in members]
        found.append(Sentence(f"methods that differ only in their window: {', '.join(texts)}"))
    return found
