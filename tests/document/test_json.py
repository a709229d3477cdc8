"""Documents as JSON: what is written is read back as it was, and nothing else is read."""

from __future__ import annotations

import json
import math

import pytest

from atrium.base.errors import AtriumError
from atrium.document.document import (
    Axis,
    Bars,
    Bounds,
    Column,
    Document,
    Estimate,
    Grid,
    Intervals,
    Lines,
    Mark,
    Passage,
    Plane,
    Point,
    Row,
    Section,
    Sentence,
    Series,
    Span,
    Table,
    Trend,
    Value,
)
from atrium.document.json import VERSION, from_json, to_json

CELLS = (
    "<b>text</b>",
    3,
    None,
    Value(0.021, "points", is_signed=True),
    Estimate(0.5, (0.4, math.inf), "share"),
    Span(1.0, 2.0, "seconds"),
    Trend((0.0, 1.0)),
)
BOUNDS = (Bounds(name="atr", value=0.1, outer=(-0.1, 0.3), dots=(0.1, 0.2)),)
FIGURES = (
    Lines(
        key="lines",
        title="Lines",
        series=(Series(name="atr", x=(1.0, 2.0), y=(None, 0.5)),),
        marks=(Mark(y=0.2),),
    ),
    Intervals(key="intervals", title="Intervals", rows=BOUNDS, x=Axis(title="points", unit="points")),
    Bars(key="bars", title="Bars", rows=BOUNDS),
    Plane(key="plane", title="Plane", points=(Point(name="atr", x=0.8, y=1.2, color=0.4),)),
    Grid(key="grid", title="Grid", rows=("atr",), values=((0.0, 1.0),)),
)
DOCUMENT = Document(
    key="sample",
    title="A title",
    alerts=(Sentence("one seed", "warning"),),
    sections=(
        Section(
            title="Scores",
            figures=FIGURES,
            tables=(
                Table(
                    title="T", columns=tuple(Column(str(n)) for n in range(len(CELLS))), rows=(Row(CELLS),)
                ),
            ),
            passages=(Passage("a\nb"),),
        ),
    ),
)


def test_document_survives_json():
    assert from_json(json.loads(json.dumps(to_json(DOCUMENT), allow_nan=False))) == DOCUMENT


@pytest.mark.parametrize(
    "found",
    [
        {"version": VERSION + 1, "document": {}},
        {"version": VERSION},
        {"version": VERSION, "document": {"kind": "Sentence", "text": "a part"}},
        {"version": VERSION, "document": {"kind": "Document", "key": "a", "title": "b", "other": 1}},
        {"version": VERSION, "document": {"kind": "Path"}},
    ],
)
def test_anything_else_is_refused_in_one_line(found):
    with pytest.raises(AtriumError) as caught:
        from_json(found)
    assert "\n" not in str(caught.value)
