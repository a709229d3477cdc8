"""One document in every medium: the same cells, escaped for each."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from atrium.document.document import (
    Column,
    Document,
    Estimate,
    Intervals,
    Passage,
    Row,
    Section,
    Sentence,
    Span,
    Table,
    Trend,
    Value,
)
from atrium.views.cells import cell_text
from atrium.views.html import html
from atrium.views.latex import latex, latex_table
from atrium.views.markdown import markdown, markdown_table
from atrium.views.terminal import print_document

HOSTILE = "<script>|&$_*\\\n\x1b[31m"


def document(name="atr"):
    scores = Table(
        title=f"Scores of {name} in percent",
        columns=(Column("arm"), Column("Mean@8"), Column("verdict", is_prose=True)),
        rows=(Row((name, Estimate(0.812, (0.78, 0.841), "share"), f"{name} is better")),),
    )
    paper = Table(
        key="atr-vs-grpo",
        title="Results",
        caption=f"Scores of {name}.",
        columns=(Column("method"), Column("Mean@8")),
        rows=(Row((name, Estimate(0.812, (0.78, 0.841), "share", is_strong=True))),),
    )
    section = Section(
        title="Scores",
        sentences=(Sentence(f"{name} scores more."),),
        figures=(Intervals(key="scores", title="Scores of every seed", rows=()),),
        tables=(scores, paper),
        passages=(Passage(f"atrium show {name}", "Next"),),
    )
    return Document(
        key="test",
        title=f"{name} against grpo",
        alerts=(Sentence("one seed", "warning", detail="arms with one seed are not judged"),),
        answer=(Sentence(f"{name} is better than grpo", "better"),),
        sections=(section,),
        notes=(Sentence("left out: a run", "warning"), Sentence("how to read it", "muted")),
    )


def printed(given, *, is_terminal=False):
    file = io.StringIO()
    print_document(Console(file=file, width=80, force_terminal=is_terminal, color_system=None), given)
    return file.getvalue()


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("atr", "atr"),
        (1200, "1,200"),
        (None, "–"),
        (Value(0.021, "points", is_signed=True), "+2.1"),
        (Value(-0.0001, "points", is_signed=True), "0.0"),
        (Value(0.0, is_signed=True), "0"),
        (Value(0.0004, "p"), "<0.001"),
        (Value(float("nan")), "–"),
        (Value(205.0, "seconds"), "3:25"),
        (Estimate(0.5, None, "share"), "50.0"),
        (Estimate(None, (0.8, float("inf")), "ratio"), "[0.800, ∞]"),
        (Estimate(None, None), "–"),
        (Estimate(-0.01, (-0.03, 0.01), "points", is_signed=True), "−1.0 [−3.0, +1.0]"),
        (Span(100, 1200, "count"), "100 to 1,200"),
        (Span(4.0, 4.0, "count"), "4"),
        (Trend((0.0, 1.0)), "▁█"),
    ],
)
def test_cell_has_the_digits_and_the_sign_of_its_unit(cell, text):
    assert cell_text(cell) == text


def test_every_medium_shows_the_same_cells():
    for text in (printed(document()), markdown(document()), html(document(), lambda _: "<svg></svg>")):
        assert "81.2 [78.0, 84.1]" in text
        assert "atr is better than grpo" in text
    assert r"\textbf{81.2} {\small [78.0, 84.1]}" in latex(document())


def test_a_table_for_a_paper_stands_in_latex_and_is_folded_on_a_page():
    above, _, below = latex(document()).partition(r"\endinput")
    assert r"\label{tab:atr-vs-grpo}" in above
    assert above.count(r"\begin{tabular}") == below.count(r"\begin{tabular}") == 1
    assert "<details>" in html(document(), lambda _: "")
    assert "Results" not in printed(document()) + markdown(document())


def test_a_terminal_leaves_out_words_in_tables_and_explanations_of_terms():
    said = printed(document())
    assert "verdict" not in said
    assert "note: left out: a run" in said
    assert said.index("one seed\n") < said.index("note: arms with one seed are not judged")
    assert "how to read it" not in said
    assert "how to read it" in markdown(document())


def test_hostile_text_is_text_in_every_medium():
    given = document(HOSTILE)
    page = Tags()
    page.feed(html(given, lambda _: ""))
    assert "script" not in page.seen
    assert "\x1b" not in printed(given) + printed(given, is_terminal=True)
    assert "<script>" not in markdown(given).partition("```")[0]
    assert r"\&\$\_*\textbackslash{}" in latex(given)
    assert all(line.startswith("% ") for line in latex(given).partition("\\begin")[0].splitlines())


def test_an_alert_unfolds_on_a_page_and_is_explained_in_every_file():
    page = html(document(), lambda _: "")
    assert "<details><summary>one seed</summary>arms with one seed are not judged</details>" in page
    assert "- one seed\n  - arms with one seed are not judged\n" in markdown(document())
    assert "% one seed\n% arms with one seed are not judged\n" in latex(document())


def test_tables_become_markdown_and_latex():
    table = Table(title="T", columns=(Column("arm"), Column("a|b")), rows=(Row(("x_1", "50 %")),))
    assert markdown_table(table) == "**T**\n\n| arm | a\\|b |\n| --- | ---: |\n| x_1 | 50 % |\n"
    assert r"x\_1 & 50 \% \\" in latex_table(table)


def test_a_fence_is_longer_than_any_in_its_text():
    section = Section(title="S", passages=(Passage("```\ncode\n```"),))
    assert "````\n```" in markdown(Document(key="k", title="t", sections=(section,)))


class Tags(HTMLParser):
    """Collects the names of all tags."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)


def test_a_page_shows_open_sections_first_and_folds_verdicts_below_a_headline():
    verdicts = [Sentence(f"{name} is better", "better", f"verdict/{name}") for name in ("b", "c", "d")]
    sections = (Section(title="Details", is_folded=True), Section(title="Scores"))
    answer = (Sentence("b is highest", key="headline"), *verdicts)
    page = html(Document(key="d", title="t", answer=answer, sections=sections), lambda _: "")
    assert (
        page.index("b is highest") < page.index("<summary>3 verdicts</summary>") < page.index("c is better")
    )
    assert page.index("<h2>Scores</h2>") < page.index("<details><summary><h2>Details</h2></summary>")
