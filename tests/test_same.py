"""The comparison of two commits (`make same`): it says equal of equals, and finds what differs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("same.py")


@pytest.fixture(scope="module")
def same():
    spec = importlib.util.spec_from_file_location("same", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def out(tmp_path):
    return {name: tmp_path / name for name in ("base", "here")}


def write_objectives(same, out, here_loss):
    for name, loss in (("base", 1.0), ("here", here_loss)):
        (out[name] / "objectives").mkdir(parents=True)
        found = {"atr on-policy 0": {"loss": loss.hex(), "norm": (1.0).hex()}}
        same.write_json(out[name] / "objectives" / "found.json", found)


def test_equal_objectives_are_equal(same, out, capsys):
    write_objectives(same, out, 1.0)
    assert same.compare_objectives(out)
    assert "0 differ" in capsys.readouterr().out


def test_the_last_bit_of_a_loss_is_a_difference_and_its_batch_is_named(same, out, capsys):
    write_objectives(same, out, 1.0 + 2.0**-52)
    assert not same.compare_objectives(out)
    assert "atr on-policy 0: loss" in capsys.readouterr().out


def test_another_word_is_shown_as_a_difference(same, out, capsys):
    for name, text in (("base", "allowed is 1\n"), ("here", "allowed is 2\n")):
        (out[name] / "words").mkdir(parents=True)
        (out[name] / "words" / "mistakes").write_text(text)
    assert not same.compare_words(out)
    assert "+allowed is 2" in capsys.readouterr().out


def test_digests_that_differ_from_the_recorded_ones_are_named(same, capsys):
    recorded = {"machine": {"torch": "2"}, "words": {"a": "1", "b": "2", "gone": "3"}}
    assert same.compare_digests(recorded, recorded, ["words"])
    assert capsys.readouterr().out == "words: 3 recorded, 0 differ\n"
    found = {"machine": {"torch": "3"}, "words": {"a": "1", "b": "4", "new": "5"}}
    assert not same.compare_digests(recorded, found, ["words"])
    said = capsys.readouterr().out
    assert "last bits of numbers may differ" in said
    assert said.endswith("words: 3 recorded, 3 differ: b, gone, new\n")


def test_the_mistakes_are_the_same_ones_every_time(same):
    assert same.mistakes(["atr", "grpo"]) == same.mistakes(["atr", "grpo"])
    assert len({tuple(mistake) for mistake in same.mistakes(["atr", "grpo"])}) > same.NUM_MISTAKES / 2


@pytest.mark.full
@pytest.mark.release
def test_a_commit_computes_and_says_what_it_does():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "HEAD", "--only", "objectives", "training", "--steps", "2"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differ" in done.stdout
    assert done.stdout.count("equal;") == 6
