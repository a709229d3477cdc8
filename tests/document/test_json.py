"""Documents as JSON: nothing of a document is lost."""

from __future__ import annotations

import json
import math

from tests.documents import decoded

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
from atrium.document.json import VERSION, to_json

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
    Plane(key="plane", title="Plane", points=(Point(name="atr", x=0.8, y=1.2),)),
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


def test_json_holds_all_of_a_document():
    found = json.loads(json.dumps(to_json(DOCUMENT), allow_nan=False))
    assert found["version"] == VERSION
    assert decoded(found["document"]) == DOCUMENT
