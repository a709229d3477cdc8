"""`atrium theory`: tables, JSON and pictures for any methods, and mistakes in one line."""

from __future__ import annotations

import json

import pytest

from atrium.cli import main
from atrium.cli.theory import DEFAULT
from atrium.config.presets import names, read_preset
from atrium.theory.results import MethodWindow


def test_two_methods_are_compared_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["theory", "atr", "dcpo", "--only", "gradients", "--only", "windows"]) == 0
    printed, said = capsys.readouterr()
    assert said == ""
    assert "Theorems 4.1 and 4.2" in printed
    assert "[0.8002, 1.2306]" in printed
    assert "KL penalties" not in printed
    drawn = {path.name for path in (tmp_path / "runs" / "figures").iterdir()}
    assert drawn == {f"theory-{part}.{kind}" for part in ("gradients", "windows") for kind in ("png", "svg")}


def test_json_holds_what_was_asked_for_and_draws_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["theory", "grpo", "gspo", "--only", "gradients", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [row["name"] for row in found["equivalences"]] == ["grpo", "gspo"]
    assert found["equivalences"][0]["window_error"] < 1e-12
    assert "courses" not in found
    assert not (tmp_path / "runs" / "figures").exists()


def window_of(name):
    return MethodWindow.of(read_preset(name).method)


def test_what_is_shown_by_default_exists_and_every_method_has_its_window():
    assert set(DEFAULT) <= set(names("algorithm"))
    assert window_of("dcpo").by_probability[0].upper > 2.0
    assert window_of("tr_ppo").constant is None
    assert window_of("grpo").by_probability == ()


@pytest.mark.full
def test_everything_is_shown_by_default(tmp_path, capsys):
    assert main(["theory", "--seeds", "2", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for title in (
        "Theorems 4.1 and 4.2",
        "asymmetry",
        "true rewards",
        "KL penalties",
        "GVPO's Theorem 1",
        "GVPO's Theorem 3",
    ):
        assert title in printed
    assert len(list(tmp_path.iterdir())) == 10
