"""`atrium windows`: budgets, matches, arms that coincide, pictures, and mistakes in one line."""

from __future__ import annotations

import json
import math

import pytest

from atrium.catalog.windows import coinciding, families, matches, named_arms
from atrium.cli import main
from atrium.config.presets import read_presets
from atrium.method.windows import Window, budget_for_lower, budget_for_upper, window


def printed(capsys, *argv):
    assert main(["windows", "--no-figures", *argv]) == 0
    return capsys.readouterr().out


def described(capsys, *argv):
    return json.loads(printed(capsys, "--json", *argv), parse_constant=pytest.fail)


def test_every_divergence_is_shown_at_its_own_budget(capsys):
    text = printed(capsys)
    kl3 = next(line for line in text.splitlines() if line.startswith("kl3 "))
    assert kl3.split()[1:4] == ["0.0231", "0.800174", "1.230610"]
    assert "a window for each minibatch: second_moment; no window on the ratio" in text
    assert "The same method (l and u to ten digits)" in text
    assert "chi2 = ratio = total_variation = window" in text
    assert "atr [0.8002, 1.2306], clip_higher [0.8000, 1.2800], grpo [0.8000, 1.2000]" in text


def test_clip_range_with_a_huge_upper_bound_is_one_line(capsys):
    assert main(["windows", "--no-figures", "--clip", "0.2", "1e300"]) == 2
    assert "--clip LOW HIGH: HIGH must be at most 999999, got 1e+300" in capsys.readouterr().err


def test_one_budget_for_all_and_budgets_of_their_own(capsys):
    at_budget = {arm["name"]: arm["window"] for arm in described(capsys, "--budget", "0.5")["arms"]}
    expected = window("kl3", 0.5)
    assert at_budget["kl3"] == [expected.lower, expected.upper]
    assert at_budget["chi2"][0] == 0.0
    named = described(capsys, "kl3=0.01,0.02", "k2", "--budget", "0.1")["arms"]
    assert [arm["name"] for arm in named] == ["kl3 0.01", "kl3 0.02", "k2 0.1"]


def test_files_of_ones_own_are_shown_as_train_takes_them(capsys, tmp_path):
    divergence, method = tmp_path / "wide.yaml", tmp_path / "mine.yaml"
    divergence.write_text("defaults: [kl3]\ndelta: 0.05\n")
    method.write_text("defaults: [grpo, override /divergence: chi2]\nname: mine\nlabel: Mine\n")
    arms = described(capsys, str(divergence), f"{divergence}=0.01", str(method))["arms"]
    assert [arm["name"] for arm in arms] == ["wide", "wide 0.01", "mine"]
    assert arms[0]["window"][1] == pytest.approx(window("kl3", 0.05).upper)
    assert arms[2]["window"] == pytest.approx([0.8, 1.2])
    assert main(["windows", str(tmp_path / "none.yaml")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_matched_budgets_are_those_of_the_windows_module(capsys):
    found = described(capsys, "kl3", "--clip", "0.2", "0.28")
    kl3 = found["matches"]["kl3"]
    assert kl3["budget_at_upper"] == pytest.approx(budget_for_upper("kl3", 1.28), rel=1e-15)
    assert kl3["budget_at_lower"] == pytest.approx(budget_for_lower("kl3", 0.8), rel=1e-15)
    assert (kl3["lower"], kl3["upper"]) == pytest.approx((0.7642, 1.2308), abs=5e-5)
    one_sided = found["matches"]["k1_signed"]
    assert (one_sided["budget_at_upper"], one_sided["upper"]) == (None, "Infinity")


def test_every_match_shares_the_bound_it_was_matched_at():
    for match in matches(Window(0.9, 1.5)):
        kind, _, alpha = match.name.partition(" (a = ")
        chosen = {"alpha": float(alpha.rstrip(")"))} if alpha else {}
        assert window(kind, match.budget_at_lower, **chosen).lower == pytest.approx(0.9, rel=1e-12)
        if match.budget_at_upper is not None:
            assert window(kind, match.budget_at_upper, **chosen).upper == pytest.approx(1.5, rel=1e-12)


def test_arms_coincide_where_ten_digits_agree():
    base, open_above = Window(0.8, 1.2), Window(0.8, math.inf)
    near, far = Window(0.8 * (1 + 2e-13), 1.2), Window(0.8 * (1 + 4e-10), 1.2)
    assert base.digits == near.digits
    assert len({base.digits, far.digits, open_above.digits}) == 3
    named = [("a", base), ("b", far), ("c", near), ("d", None), ("e", open_above), ("f", open_above)]
    assert coinciding(named) == [["a", "c"], ["e", "f"]]


def test_methods_that_differ_in_their_window_only_are_found():
    assert {"atr", "clip_higher", "grpo"} in [{p.name for p in found} for found in families(read_presets())]


def test_an_arm_with_a_budget_keeps_its_other_settings():
    (arm,) = named_arms(["alpha=0.3"], None)
    assert arm.config.alpha == 1.0
    assert arm.window == window("alpha", 0.3, alpha=1.0)


def test_pictures_are_drawn_where_they_are_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["windows", "kl3", "ratio", "state_kl"]) == 0
    drawn = [line.removeprefix("drew ") for line in capsys.readouterr().out.splitlines() if "drew" in line]
    assert sorted(drawn) == [
        f"runs/figures/{name}.{kind}" for name in ("plane", "windows") for kind in ("png", "svg")
    ]
    assert all((tmp_path / path).stat().st_size > 5000 for path in drawn)
    assert main(["windows", "window", "--out", "here", "--json"]) == 0
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"plane.png", "plane.svg"}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert main(["windows", "kl3", "--out", str(tmp_path / "taken")]) == 2
    assert "cannot draw into" in capsys.readouterr().err
