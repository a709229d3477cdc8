"""Sheets of figures: their widths, what is written on them, and files that are equal for equal figures."""

from __future__ import annotations

import re

import pytest
from tests.compare.documents import document_of

from atrium.base.errors import ConfigError
from atrium.compare.document_figures import (
    difference_figure,
    grid_figure,
    pass_at_k_figure,
    picture,
)
from atrium.compare.run_comparison import compare_runs
from atrium.compare.training_document import read_training
from atrium.views.dashboard.curve_figure import curves_figure
from atrium.views.figures.sheet import COLUMN_INCHES, file, sheet


def panel(name="objective/entropy", *, is_share=False, **changes):
    series = {"label": "atr", "x": [1, 2, 3], "y": [0.5, 0.25, None], "low": [0.4, 0.2, None],
              "high": [0.6, 0.3, None], "num": 5, "place": 0}  # fmt: skip
    others = {**series, "label": "a_$long$ name of a method · delta 0.02", "place": 1, "num": [5, 5, 4]}
    return {
        "name": name, "unit": "nats", "meaning": "entropy per token", "is_share": is_share,
        "series": [series, others], **changes,
    }  # fmt: skip


def drawn(figure, columns=1):
    return sheet([figure], inches=COLUMN_INCHES[columns])


def texts(drawing):
    """All that is written on a drawing, in one line."""
    axes = drawing.axes[0]
    found = [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
    found += [tick.get_text() for tick in axes.get_yticklabels()]
    found += [text.get_text() for text in axes.texts]
    found += [text.get_text() for legend in drawing.legends for text in legend.get_texts()]
    return " ".join(" ".join(found).split())


@pytest.mark.parametrize("columns", COLUMN_INCHES)
def test_curves_have_a_title_labels_units_and_a_legend_inside_the_paper(columns):
    drawing = drawn(curves_figure([panel()], axis="tokens", band="range"), columns)
    for part in ("objective/entropy", "generated tokens", "entropy per token (nats)", "atr (n = 5)",
                 "(band: minimum to maximum over runs)", r"a_\$long\$ name"):  # fmt: skip
        assert part in texts(drawing)
    drawing.draw_without_rendering()
    assert drawing.get_figwidth() == COLUMN_INCHES[columns]
    whole = drawing.bbox
    for artist in (*drawing.legends, drawing.axes[0]):
        box = artist.get_tightbbox()
        assert whole.x0 - 1 <= box.x0 < box.x1 <= whole.x1 + 1, "nothing is cut off at a side"
        assert whole.y0 - 1 <= box.y0 < box.y1 <= whole.y1 + 1
    assert drawing.axes[0].get_window_extent().height > 0.4 * whole.height / columns


def test_shares_are_percent_and_a_logarithmic_axis_has_no_bands():
    drawing = drawn(curves_figure([panel(is_share=True)], axis="step", band="range", is_log=True))
    assert drawing.axes[0].lines[0].get_ydata()[0] == 50.0
    assert "entropy per token (%)" in texts(drawing)
    assert not drawing.axes[0].collections
    assert "band" not in texts(drawing)


def test_several_quantities_in_one_figure_are_told_apart():
    both = [panel(), panel("objective/other")]
    said = texts(drawn(curves_figure(both, axis="step", band="none"), 2))
    assert "objective/other, atr (n = 5)" in said
    assert "objective/entropy, atr (n = 5)" in said
    single = [{**one, "series": one["series"][:1]} for one in both]
    labels = {"objective/entropy": "of tokens", "objective/other": "of answers"}
    drawing = drawn(curves_figure(single, axis="step", band="none", title="Two", labels=labels))
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["of tokens", "of answers"]
    assert texts(drawing).startswith("Two training step value (nats)")


def test_without_curves_one_line_says_so():
    with pytest.raises(ConfigError, match="curves cannot be drawn"):
        curves_figure([panel(series=[])], axis="step", band="none")


def test_files_have_their_fonts_in_them_and_are_equal_for_equal_figures():
    def files():
        figure = curves_figure([panel()], axis="step", band="none")
        return {kind: file([figure], kind, inches=COLUMN_INCHES[1]) for kind in ("svg", "pdf", "png")}

    first, again = files(), files()
    assert first == again
    assert first["png"].startswith(b"\x89PNG")
    assert first["pdf"].startswith(b"%PDF")
    assert b"/FontFile2" in first["pdf"]
    assert b"<text" not in first["svg"], "letters are outlines"
    width = re.search(rb'<svg[^>]* width="([\d.]+)pt"', first["svg"])
    assert float(width[1]) == pytest.approx(72 * COLUMN_INCHES[1])


def test_comparisons_are_drawn_with_every_method_named(make_study):
    comparison = compare_runs(make_study({"grpo": 0.0, "atr": 0.2, "clip_higher": 0.0}, num_seeds=2))
    candidates, methods = ["atr", "clip_higher"], ["grpo", "atr", "clip_higher"]
    for kind, figure, part in (
        ("difference", difference_figure(comparison), "points of Mean@4 against grpo"),
        ("over_k", pass_at_k_figure(comparison), "problems solved by any of k samples (%)"),
        ("grid", grid_figure(comparison, "exam"), "40 problems, easiest on the left"),
    ):
        assert part in texts(drawn(figure))
        assert all(name in texts(drawn(figure)) for name in (candidates if kind == "difference" else methods))
        assert file([figure], "pdf", inches=COLUMN_INCHES[1]).startswith(b"%PDF")


@pytest.mark.parametrize(
    ("num_arms", "said"), [(2, "over 3 seeds per method"), (4, "3 methods against grpo")]
)
def test_a_picture_of_a_comparison_says_what_may_be_said_above_rewards_and_seeds(make_study, num_arms, said):
    effects = dict.fromkeys(("grpo", "atr", "clip_higher", "dapo")[:num_arms], 0.0)
    comparison = compare_runs(make_study({**effects, "atr": 0.2}, num_seeds=3), baseline="grpo")
    rewards = read_training([one.arm for one in comparison.arms]).rewards
    title, figures = picture(comparison, rewards)
    drawing = sheet(figures, inches=COLUMN_INCHES[2], title=title, num_columns=2)
    assert said in " ".join(drawing.get_suptitle().split())
    left, right = drawing.axes
    assert left.get_ylabel() == "mean reward"
    assert [tick.get_text() for tick in right.get_yticklabels()] == list(effects)
    num_dots = sum(len(line.get_xdata()) == 1 and line.get_marker() == "o" for line in right.lines)
    assert num_dots == 3 * num_arms


def test_equal_documents_give_equal_pictures(make_study):
    comparison = compare_runs(make_study({"grpo": 0.0, "atr": 0.2}, num_seeds=2))
    figures = [figure for section in document_of(comparison).sections for figure in section.figures]
    for figure in figures:
        assert file([figure], "svg", inches=3.0) == file([figure], "svg", inches=3.0)
