"""Docstrings, messages and help of the package: American spelling and the terms of docs/glossary.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "platform" / "atrium"
REPLACED = {
    "allowed are": "use one of",
    "anew": "again",
    "behaviour": "behavior",
    "bit for bit": "bitwise identical",
    "colour": "color",
    "dealt": "distributed",
    "go on with": "resume",
    "goes on": "continues",
    "gold answer": "reference answer",
    "leaves no room": "leaves no space",
    "neighbour": "neighbor",
    "optimiser": "optimizer",
    "taken for": "mistaken for",
    "whoever": "anyone who",
}


def test_texts_of_the_package_use_standard_terms():
    wrong = re.compile(rf"(?<!mis)\b({'|'.join(REPLACED)})\b", flags=re.IGNORECASE)
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = re.sub(r"`[^`]+`", "", node.value)
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                found += [f"{place}: {REPLACED[word.lower()]}, not {word}" for word in wrong.findall(text)]
    assert not found
