"""The commands of docs/import.md, run in their order on the files that the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from atrium.cli.app import main

FILES = Path(__file__).parent / "files"
PAGE = (Path(__file__).parents[2] / "docs" / "import.md").read_text(encoding="utf-8")
OTHERS = {
    "deep.jsonl": '{"model": "ours", "doc": {"id": 1}, "points": 0.7}\n',
}


def test_every_command_of_the_page_runs(tmp_path, capsys):
    (tmp_path / "results.csv").write_text(re.search("```csv\n(.*?)```", PAGE, re.DOTALL)[1], encoding="utf-8")
    for name, text in OTHERS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name, source in {"lm_eval": "lm_eval", "trl": "trl/grpo-0", "verl": "verl"}.items():
        shutil.copytree(FILES / source, tmp_path / f"{name}_output")
    commands = re.findall(r"^\$ atrium (.*)$", PAGE, flags=re.MULTILINE)
    assert len(commands) >= 8
    for command in commands:
        assert main(shlex.split(command, comments=True)) == 0, command
    assert "unknown for grpo and ours: model" in capsys.readouterr().out
