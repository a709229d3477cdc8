"""What is found in the metrics of a run: each rule, its steps and evidence, and when it is said."""

from __future__ import annotations

import json
import math

import pytest

from atrium.tracking.diagnosis import NUM_STEPS, Notes, diagnose
from atrium.tracking.reader import read_findings
from atrium.tracking.run_folder_writer import RunFolderWriter
from atrium.tracking.status import RunState

HEALTHY = {
    "rollout/reward": 0.5,
    "rollout/correct_frac": 0.5,
    "rollout/no_signal_frac": 0.3,
    "rollout/truncated_frac": 0.05,
    "objective/loss": 0.1,
    "objective/entropy": 0.4,
    "optimizer/grad_norm": 1.0,
    "optimizer/num_updates": 4.0,
    "optimizer/num_skipped_updates": 0.0,
}
DEAD = {"rollout/no_signal_frac": 1.0, "rollout/correct_frac": 0.0, "rollout/reward": 0.0}
CUT = {"rollout/truncated_frac": 0.875}
SOLVED = {"rollout/no_signal_frac": 1.0, "rollout/correct_frac": 1.0, "rollout/reward": 1.0}
SKIPPED = {"optimizer/num_updates": 1.0, "optimizer/num_skipped_updates": 3.0}


def steps(*changes):
    """Steps from 1 on, each healthy but for its changes."""
    return [(step, {**HEALTHY, **change}) for step, change in enumerate(changes, start=1)]


def rules(found):
    return [finding.rule for finding in found]


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        (DEAD, "no signal", "in 100.0 % of the groups all rewards were equal (mean reward 0, 0.0 % correct)"),
        (CUT, "truncation", "87.5 % of the completions were cut off by the length limit"),
        (SOLVED, "all solved", "100.0 % of the completions were correct"),
        (SKIPPED, "divergence", "3 of 4 updates of a step had no finite gradient"),
        ({"objective/entropy": math.nan}, "divergence", "objective/entropy is not a finite number"),
        ({"optimizer/grad_norm": math.inf}, "divergence", "optimizer/grad_norm is not a finite number"),
    ],
)
def test_each_rule_names_its_steps_and_its_evidence(change, rule, said):
    [found] = diagnose(steps({}, *[change] * 12))
    assert (found.rule, found.first_step, found.last_step) == (rule, 2, 13)
    assert found.text.startswith(f"{rule}, steps 2 to 13: ")
    assert said in found.text
    evidence = {name: value for name, value in found.evidence.items() if name in change}
    assert evidence == pytest.approx({name: change[name] for name in evidence}, nan_ok=True)
    assert evidence


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rollout/truncated_frac": 0.29},
        {"rollout/no_signal_frac": 0.9, "rollout/correct_frac": 0.95},
        {"optimizer/num_updates": 3.0, "optimizer/num_skipped_updates": 1.0},
    ],
)
def test_a_run_that_learns_has_no_findings(change):
    assert diagnose(steps(*[change] * 30)) == ()


def test_what_was_overcome_before_the_end_is_no_finding():
    assert diagnose(steps(*[{**DEAD, **CUT}] * 30, *[{}] * NUM_STEPS)) == ()


def test_nothing_is_found_where_nothing_is_recorded():
    assert diagnose([]) == ()
    assert diagnose([(step, {}) for step in range(1, 30)]) == ()


def test_a_running_run_is_judged_after_enough_steps_and_a_short_one_at_its_end():
    early = steps(*[DEAD] * (NUM_STEPS - 1))
    assert diagnose(early, is_over=False) == ()
    assert rules(diagnose(early)) == ["no signal"]
    assert rules(diagnose(steps(*[DEAD] * NUM_STEPS), is_over=False)) == ["no signal"]
    assert rules(diagnose(steps(SKIPPED), is_over=False)) == ["divergence"], "this cannot wait"


def test_a_lucky_group_among_many_is_no_signal_still():
    almost = {**DEAD, "rollout/no_signal_frac": 0.99, "rollout/correct_frac": 0.001}
    assert rules(diagnose(steps(*[DEAD, almost] * 10))) == ["no signal"]


def test_each_note_is_said_once_and_at_the_step_that_showed_it():
    said = []
    notes = Notes(said.append)
    num_said = []
    for step, metrics in steps(*[{**DEAD, **CUT}] * 40):
        notes.step(step, metrics)
        num_said.append(len(said))
    assert num_said == [0] * (NUM_STEPS - 1) + [2] * (41 - NUM_STEPS)
    assert [text.split(": ")[1] for text in said] == [
        "no signal, steps 1 to 10",
        "truncation, steps 1 to 10",
    ]


def test_findings_are_read_from_a_folder_with_numbers_that_json_lacks(folder):
    tracker = RunFolderWriter(folder)
    tracker.begin(step=0, num_steps=12)
    for step, metrics in steps(*[DEAD] * 11, {**DEAD, "objective/loss": math.nan}):
        tracker.step(step, metrics)
    tracker.end(RunState.FINISHED)
    divergence, no_signal = read_findings(folder)
    assert (divergence.rule, divergence.first_step) == ("divergence", 12)
    assert (no_signal.rule, no_signal.first_step, no_signal.last_step) == ("no signal", 1, 12)
    summary = json.loads(folder.summary_file.read_text())
    assert [(found["rule"], found["first_step"]) for found in summary["findings"]] == [
        ("divergence", 12),
        ("no signal", 1),
    ]
    assert summary["findings"][0]["evidence"]["objective/loss"] == "NaN"
    assert summary["findings"][1]["text"] == no_signal.text
