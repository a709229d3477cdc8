"""The page's own files: nothing in them parses HTML or evaluates text, and nothing is asked elsewhere."""

from __future__ import annotations

import re

import pytest

from atrium.compare.dashboard.server import STATIC, VIEWS

OWN = sorted(path for path in STATIC.rglob("*") if path.is_file() and "vendor" not in path.parts)
SCRIPTS = [path for path in OWN if path.suffix == ".js"]
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_parses_html_or_evaluates_text(path):
    text = path.read_text(encoding="utf-8")
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert forbidden not in text, forbidden


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_file_names_another_server(path):
    text = path.read_text(encoding="utf-8").replace(NAMESPACE, "")
    assert not re.search(r"(https?:)?//[a-z0-9]+\.", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_imported_script_exists(path):
    for name in re.findall(r'(?:from|import\()\s*"(\.[^"]+)"', path.read_text(encoding="utf-8")):
        assert (path.parent / name).resolve().is_file(), name


def test_every_view_has_a_script():
    app = (STATIC / "app.js").read_text(encoding="utf-8")
    assert tuple(re.findall(r'^  "?([a-z-]+)"?: \(\) => import', app, flags=re.MULTILINE)) == VIEWS


def test_the_vendored_library_comes_with_its_licence():
    folder = STATIC / "vendor" / "echarts"
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "Apache ECharts" in (folder / "NOTICE").read_text()
    assert (folder / "echarts.esm.min.js").stat().st_size > 500_000


def test_what_typesets_formulas_comes_with_its_licence_and_builds_nodes():
    folder = STATIC / "vendor" / "temml"
    assert "MIT License" in (folder / "LICENSE").read_text()
    script = (folder / "temml.esm.min.js").read_text()
    assert "innerHTML" not in script
    assert "new Function" not in script
