"""The documentation as a whole: what is generated is what the code says, and every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    REPOSITORY / "README.md",
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    for target, anchor in linked(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target}#{anchor}"


def test_every_page_is_reached_from_the_readme():
    seen, queue = set(), [REPOSITORY / "README.md"]
    while queue:
        page = queue.pop()
        seen.add(page)
        queue += [target for target, _ in linked(page) if target.suffix == ".md" and target not in seen]
    assert set(PAGES) <= seen


def test_the_generated_pages_are_what_the_code_says(tmp_path):
    subprocess.run([sys.executable, REPOSITORY / "docs" / "generate.py", tmp_path], check=True, timeout=120)
    for page in tmp_path.iterdir():
        text = (REPOSITORY / "docs" / page.name).read_text(encoding="utf-8")
        assert page.read_text(encoding="utf-8") == text, f"docs/{page.name} is older than the code: make docs"
    assert {page.name for page in tmp_path.iterdir()} == {"settings.md", "metrics.md"}
