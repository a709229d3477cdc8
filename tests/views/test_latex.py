"""LaTeX compiles: by a TeX where one is installed, and in any case by its structure."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from atrium.document.document import Column, Document, Estimate, Row, Section, Table, Value
from atrium.views.latex import latex

HOSTILE = "[ours] 100 % & $x_1^2$ {a} \\\\end{tabular} #1 ~ <–> −∞ ≤ ★ é é\u0301 δ…"
PREAMBLE = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"


def document():
    """A table for a paper and one to copy, with text that TeX would stumble over."""
    columns = (Column("Method"), Column(HOSTILE), Column("Difference"))
    cells = (Estimate(0.812, (0.78, 0.84), "share", is_strong=True), Value(-0.021, "points", is_signed=True))
    rows = (Row((HOSTILE, *cells)), Row(("[1]", None, Value(0.003, "points", is_signed=True))))
    paper = Table(title="Results", key="results", caption=HOSTILE, columns=columns, rows=rows)
    copied = Table(title=HOSTILE, columns=columns, rows=rows)
    return Document(key="d", title="t", sections=(Section(title="Results", tables=(paper, copied)),))


def without_comments(text):
    return re.sub(r"(?<!\\)%.*", "", text)


def check_structure(text):
    """Environments and braces nest, rows have all columns, and no special character is bare."""
    opened, depth = [], 0
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    for character in re.sub(r"\\[\\{}]", "", text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert rows
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
            assert not row.startswith("[")
    assert not re.search(r"(?<!\\)#|[^\x00-\xff]", text)
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0


def test_files_with_hostile_text_have_the_structure_of_latex():
    above, _, below = latex(document()).partition("\\endinput")
    check_structure(without_comments(above))
    check_structure(without_comments(below))
    assert "$-$2.1" in above


def test_file_compiles_with_an_installed_tex(tmp_path):
    tex = next(filter(None, map(shutil.which, ("pdflatex", "xelatex", "tectonic"))), None)
    if tex is None:
        pytest.skip("no TeX is installed")
    tables = latex(document()).replace("\\endinput", "")
    (tmp_path / "page.tex").write_text(f"{PREAMBLE}{tables}\\end{{document}}\n", encoding="utf-8")
    options = [] if tex.endswith("tectonic") else ["-interaction=nonstopmode", "-halt-on-error"]
    made = subprocess.run([tex, *options, "page.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]
    assert (tmp_path / "page.pdf").exists()
