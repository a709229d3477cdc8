"""The page's own files: nothing in them parses HTML or evaluates text, and nothing is asked elsewhere."""

from __future__ import annotations

import re

from atrium.views.dashboard.server import STATIC, VIEWS

OWN = sorted(path for path in STATIC.rglob("*") if path.is_file() and "vendor" not in path.parts)
SCRIPTS = [path for path in OWN if path.suffix == ".js"]
NAMESPACE = "http://www.w3.org/2000/svg"


FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")


def test_no_script_parses_html_or_evaluates_text():
    assert len(SCRIPTS) > 20
    texts = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS}
    assert [(name, word) for name, text in texts.items() for word in FORBIDDEN if word in text] == []


def test_no_file_names_another_server():
    texts = {path.name: path.read_text(encoding="utf-8").replace(NAMESPACE, "") for path in OWN}
    assert [name for name, text in texts.items() if re.search(r"(https?:)?//[a-z0-9]+\.", text)] == []


def test_every_imported_script_exists():
    imports = re.compile(r'(?:from|import\()\s*"(\.[^"]+)"')
    imported = [
        (path, name) for path in SCRIPTS for name in imports.findall(path.read_text(encoding="utf-8"))
    ]
    assert [
        (path.name, name) for path, name in imported if not (path.parent / name).resolve().is_file()
    ] == []


def test_every_view_has_a_script():
    missing = [view for view in VIEWS if not (STATIC / "views" / f"{view.replace('-', '_')}.js").is_file()]
    assert missing == []


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
