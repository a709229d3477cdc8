"""The documentation as a whole: what is generated is what the code says, and every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "sweeps" / "README.md",
]
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def anchors(page):
    """The names under which a page's headings can be linked, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def linked(page):
    """What a page links to: the file, and the heading within it or nothing."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        yield (page.parent / name).resolve() if name else page, anchor


def test_every_link_of_a_page_leads_to_a_file_and_a_heading():
    links = [(page.name, *link) for page in PAGES for link in linked(page)]
    broken = [
        f"{page}: {target}#{anchor}"
        for page, target, anchor in links
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert links
    assert not broken


def test_pages_longer_than_a_screen_have_contents_that_link_every_section():
    generated = {"methods.md", "metrics.md", "settings.md", "reproductions.md", "glossary.md", "README.md"}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if page.name in generated or text.count("\n") < 60:
            continue
        contents = text.partition("**Contents:** ")[2].partition("\n\n")[0]
        code = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
        sections = re.findall(r"^## (.+)$", code.sub("", text), flags=re.MULTILINE)
        assert re.findall(r"\[(.+?)\]\(#", contents.replace("\n", " ")) == sections, page.name


REPLACED = {
    "anew": "again",
    "bit for bit": "bitwise identical",
    "coloured": "colored",
    "dealt": "divided",
    "optimiser": "optimizer",
    "recognised": "recognized",
    "superfluous": "unnecessary",
    "whoever": "anyone who",
}


def test_written_pages_use_standard_terms_and_numbers_with_a_leading_zero():
    found = []
    for page in PAGES:
        if page.name in {"methods.md", "metrics.md", "settings.md", "reproductions.md"}:
            continue
        text = re.sub(r"^```.*?^```|`[^`]+`", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        words = "|".join(map(re.escape, REPLACED))
        wrong = re.findall(rf"\b({words})\b", text, flags=re.IGNORECASE)
        found += [f"{page.name}: {REPLACED[word.lower()]}, not {word}" for word in wrong]
        found += [f"{page.name}: 0{number}" for number in re.findall(r"(?<![\w.)])\.\d+", text)]
    assert not found


def test_every_page_is_reached_from_the_readme():
    seen, queue = set(), [REPOSITORY / "README.md"]
    while queue:
        page = queue.pop()
        seen.add(page)
        queue += [target for target, _ in linked(page) if target.suffix == ".md" and target not in seen]
    assert set(PAGES) <= seen


def test_the_generated_pages_are_what_the_code_says(tmp_path):
    subprocess.run([sys.executable, REPOSITORY / "docs" / "generate.py", tmp_path], check=True, timeout=120)
    names = {str(page.relative_to(tmp_path)) for page in tmp_path.rglob("*.*")}
    for name in names:
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == text, (
            f"{name} is older than the code: make docs"
        )
    pages = {"README.md", "docs/trainers.md", "docs/settings.md", "docs/metrics.md"}
    assert names == pages | {"conf/schema.json"}


def setting_tables():
    """Every table of docs/settings.md, as its rows of cells by column."""
    text = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        heads, _, *rows = (re.split(r" (?<!\\)\| ?", line.strip().strip("|")) for line in block.splitlines())
        yield [dict(zip(map(str.strip, heads), map(str.strip, row), strict=False)) for row in rows]


def test_every_setting_has_a_default_and_a_meaning_of_at_least_four_words():
    rows = [row for table in setting_tables() for row in table]
    assert len(rows) > 250
    for row in rows:
        defaults = [
            row[column] for column in ("default", "built-in", "below 500M", "larger") if column in row
        ]
        assert defaults, row
        assert all(defaults), row
        assert len(row["meaning"].split()) >= 4, row


def test_settings_page_begins_with_twenty_settings_and_repeats_no_table():
    first, *tables = setting_tables()
    assert len(first) == 20
    assert {"built-in", "below 500M", "larger"} <= set(first[0])
    keys = [tuple((row["setting"].rpartition(".")[2], row["meaning"]) for row in table) for table in tables]
    assert len(keys) == len(set(keys))


def test_contents_of_the_settings_page_link_every_section():
    text = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    contents = text.partition("## Contents")[2].partition("\n## ")[0]
    sections = set(anchors(REPOSITORY / "docs" / "settings.md")) - {"settings", "contents"}
    assert {anchor for _, anchor in re.findall(r"\[([^]]+)\]\(#([^)]+)\)", contents)} == sections
