"""`atrium objectives`: the table, one method, several side by side, JSON, and the page of methods."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from atrium.catalog.axes import axes
from atrium.catalog.methods import side_by_side
from atrium.catalog.page import as_of, deviation, methods_page, papers, places
from atrium.cli import main, objectives
from atrium.config.presets import names, read_presets

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def printed(capsys, *argv):
    assert main(["objectives", *argv]) == 0
    return capsys.readouterr().out


def test_a_method_of_ones_own_is_shown_as_train_takes_it(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("# My method.\ndefaults: [dr_grpo, override /rollout: bank_and_live]\nname: mine\n")
    shown = json.loads(printed(capsys, str(file), "dr_grpo", "--json"))
    mine = shown["methods"]["mine"]
    assert (mine["header"], mine["builds_on"]) == ("My method.", "dr_grpo")
    assert shown["differing"] == ["rollout"]
    assert main(["objectives", str(tmp_path / "none.yaml")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_the_table_has_a_row_for_every_method(capsys):
    lines = printed(capsys).splitlines()
    first_words = {line.split(" ")[0] for line in lines}
    assert set(names("algorithm")) <= first_words
    (atr,) = (line for line in lines if line.startswith("atr "))
    assert "kl3 delta=0.0231" in atr
    assert "[0.8002, 1.2306]" in atr


def test_a_narrow_terminal_splits_no_word(capsys, monkeypatch):
    texts = [text for preset in read_presets() for item in axes(preset).items() for text in item]
    whole = {word.strip(";:") for text in texts for word in text.split()} | {"choices", "method"}
    console = Console(width=80, markup=False, force_terminal=True, color_system=None)
    monkeypatch.setattr(objectives, "standard_output", lambda: console)
    lines = printed(capsys).splitlines()
    last = f"{len(names('algorithm'))} methods"
    place = next(place for place, line in enumerate(lines) if line.startswith(last))
    assert max(map(len, lines[:place])) <= 80
    words = {word.strip(";:") for line in lines[:place] for word in line.split()}
    assert words <= whole | set(names("algorithm"))


def test_methods_side_by_side_split_no_value_at_80_columns_and_lose_none(capsys, monkeypatch):
    chosen = ("atr", "grpo", "dapo", "gspo")
    found = {preset.name: preset for preset in read_presets()}
    rows = side_by_side([found[name] for name in chosen])
    console = Console(width=80, markup=False, force_terminal=True, color_system=None)
    monkeypatch.setattr(objectives, "standard_output", lambda: console)
    lines = printed(capsys, *chosen).splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert all(value in text for values in rows.values() for value in values)
    assert sum(line.split()[:2] == ["≠", "divergence.epsilon_low"] for line in lines) == 2, "in each half"


def test_two_side_by_side_mark_what_differs_and_nothing_else(capsys):
    lines = printed(capsys, "atr", "gspo").splitlines()
    marked = {line.split()[1] for line in lines if line.startswith("≠")}
    assert marked >= {"algorithm.ratio.gate.level", "divergence.kind", "divergence.delta"}
    assert "algorithm.surrogate.kind" not in marked
    assert any(line.split()[:1] == ["algorithm.surrogate.kind"] for line in lines)
    only = printed(capsys, "atr", "gspo", "--different").splitlines()
    assert not any("algorithm.surrogate.kind" in line for line in only)
    assert {line.split()[1] for line in only if line.startswith("≠")} == marked


def test_two_side_by_side_say_whether_they_can_differ(capsys):
    text = printed(capsys, "atr", "gspo", "--different")
    assert "one update per batch: identical gradients" in text
    assert "a log-ratio spread of 0.1: gradients differ; distance of unit gradients" in text
    assert "one factor per batch" in printed(capsys, "dr_grpo", "reinforce", "--different")


def test_one_method_shows_its_header_and_marks_nothing(capsys):
    text = printed(capsys, "grpo")
    assert "DeepSeekMath" in text
    assert "≠" not in text


def test_window_of_bapo_is_shown_as_the_first_and_the_last_one_of_its_search(capsys):
    assert "[0.6000, 1.2000] to [0.9000, 3.0000]" in printed(capsys, "bapo")


def test_json_holds_every_setting_and_the_ones_that_differ(capsys):
    found = json.loads(printed(capsys, "atr", "grpo", "--json"))
    assert set(found["methods"]) == {"atr", "grpo"}
    assert found["methods"]["grpo"]["window"] == [0.8, 1.2]
    assert found["methods"]["atr"]["builds_on"] == "grpo"
    assert set(found["differing"]) == {"divergence.kind", "divergence.delta", "window [l, u]"}


def test_json_of_all_methods_is_standard_json(capsys):
    found = json.loads(printed(capsys, "--json"), parse_constant=pytest.fail)
    assert set(found["methods"]) == set(names("algorithm"))


def test_the_page_says_what_methods_share_and_where_other_trainers_differ():
    page = methods_page(read_presets()).splitlines()
    (row,) = (line for line in page if line.startswith("| Rejected tokens"))
    assert "included in denominators" in row
    (row,) = (line for line in page if line.startswith("| Reduction of the entropy bonus"))
    assert "regularizer.entropy.reduction=token_mean" in row


def test_the_page_of_methods_is_current(capsys):
    assert PAGE.read_text(encoding="utf-8") == printed(capsys, "--markdown"), "run `make docs`"


def test_the_page_is_written_where_it_is_asked_for(tmp_path, capsys):
    path = tmp_path / "page.md"
    assert printed(capsys, "--markdown", "--out", str(path)) == f"wrote {path}\n"
    assert path.read_text(encoding="utf-8") == printed(capsys, "--markdown")
    assert main(["objectives", "--markdown", "--out", str(tmp_path / "no" / "page.md")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_papers_places_and_deviations_come_from_the_header():
    header = "DAPO. arXiv 2503.14476. Eq. 10\n(clip-higher), eq. 12. Differs: no\npenalty."
    assert papers(header) == ["2503.14476"]
    assert places(header) == ["eq. 10", "eq. 12"]
    assert deviation(header) == ("DAPO. arXiv 2503.14476. Eq. 10 (clip-higher), eq. 12.", "no penalty.")
    assert deviation("Plain.") == ("Plain.", "")
    assert deviation(f"{header}\nAs of: verl 0.9.1.") == deviation(header)
    assert as_of(f"{header}\nAs of: verl 0.9.1.") == "verl 0.9.1"


def test_every_method_says_of_when_its_source_is():
    dated = re.compile(r"\b(19|20)\d\d\b|\d+\.\d+\.\d+|pull request \d+|\bat [0-9a-f]{7,8}\b")
    undated = [one.name for one in read_presets() if not dated.search(as_of(one.file.header))]
    assert not undated, f"end the header of {undated} with a line `# As of: DATE, VERSION or COMMIT.`"


@pytest.mark.parametrize(
    "argv", [["objectives", "--json"], ["windows", "--json"], ["runs"], ["sweep", "list"]]
)
def test_no_torch_is_loaded(argv, tmp_path):
    program = (
        "import sys; from atrium.cli import main\n"
        f"code = main({argv!r})\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
