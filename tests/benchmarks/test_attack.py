"""A small share of the attack (`make attack`) before each release: the same functions, with small counts."""

from __future__ import annotations

import itertools
import random

import pytest
from benchmarks.attack import commands, damage, effects, hostile, kills, mutations
from benchmarks.attack.outcomes import Attempt, Outcome, judge, table

SEED = 28


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fallen(attempts):
    """What fell, in words."""
    return [f"{one.kind}: {one.tried}: {one.said}" for one in attempts if one.outcome is Outcome.FELL]


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(900)
def test_many_wrong_command_lines_hold_or_are_refused():
    lines = itertools.islice(mutations.command_lines(SEED + 1), 60)
    assert fallen(map(mutations.tried, lines)) == []


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(900)
def test_a_few_damaged_files_are_shown_or_refused(tmp_path):
    assert fallen(damage.attempts(8, SEED, tmp_path)) == []


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(900)
def test_a_few_hostile_files_are_taken_or_refused(tmp_path):
    assert fallen(hostile.attempts(20, SEED, tmp_path)) == []


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(1800)
def test_settings_that_are_accepted_show_in_two_steps(tmp_path):
    assert fallen(effects.attempts(12, SEED, tmp_path)) == []


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(1800)
def test_a_kill_of_a_command_changes_no_result(tmp_path):
    """The other kinds of command are killed in tests/faults."""
    [found] = kills.attempts(1, SEED, tmp_path)
    assert found.outcome is Outcome.HELD, found.said
    assert found.kind == "kills: training"


def test_every_kind_of_damage_is_done(tmp_path):
    for name, damage_of in damage.DAMAGES.items():
        path = tmp_path / name.replace("/", "_")
        path.write_bytes(b"content" * 9)
        damage_of(path, random.Random(SEED))
        is_whole = path.is_file() and not path.is_symlink() and path.read_bytes() == b"content" * 9
        assert not is_whole, name


def test_a_refusal_is_one_line_that_names_what_is_wrong():
    assert judge(2, "error: seed must be a number, got x\n", ["seed"])[0] is Outcome.REFUSED
    assert judge(2, "error: something is wrong\n", ["seed"])[0] is Outcome.FELL
    assert judge(2, "error: seed\nand more\n", ["seed"])[0] is Outcome.FELL
    assert judge(1, "error: seed\n", ["seed"])[0] is Outcome.FELL
    assert judge(0, "Traceback (most recent call last)\n")[0] is Outcome.FELL


def test_ctrl_c_ends_the_attack_and_not_one_command_of_it():
    with pytest.raises(KeyboardInterrupt):
        judge(130, "interrupted\n")


def test_a_command_line_without_an_answer_has_fallen(monkeypatch):
    monkeypatch.setattr(commands, "HANG_S", 1)
    monkeypatch.setattr(mutations, "main", lambda argv: [None for _ in itertools.count()])
    assert mutations.tried(mutations.CommandLine("k", ("train",), ())).outcome is Outcome.FELL


def test_the_table_counts_each_kind():
    attempts = [
        Attempt("a", "", Outcome.HELD),
        Attempt("b", "", Outcome.FELL),
        Attempt("a", "", Outcome.REFUSED),
    ]
    assert table(attempts)[2:] == ["| a | 2 | 1 | 1 | 0 |", "| b | 1 | 0 | 0 | 1 |"]
