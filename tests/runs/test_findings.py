"""What is found in the metrics of a run: each rule, its steps and evidence, and when it is said."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from atrium.runs.diagnosis import (
    NUM_FIRST_STEPS,
    NUM_STEPS,
    Course,
    Notes,
    diagnose,
    find_collapse,
)
from atrium.runs.reader import read_findings
from atrium.runs.run_facts import RunFacts
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState

HEALTHY = {
    "rollout/reward": 0.5,
    "rollout/correct_frac": 0.5,
    "rollout/no_signal_frac": 0.3,
    "rollout/truncated_frac": 0.05,
    "rollout/no_answer_frac": 0.1,
    "rollout/completion_length": 20.0,
    "mismatch/kl": 1e-4,
    "objective/loss": 0.1,
    "objective/entropy": 0.4,
    "objective/kl_after_update": 0.01,
    "objective/ratio_max": 3.0,
    "objective/heaviest_token_frac": 0.02,
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
        (
            {"objective/entropy": 0.002},
            "entropy gone",
            "a completion has 0.04 nats of entropy (0.002 a token)",
        ),
        (
            {"objective/kl_after_update": 0.5, "objective/ratio_max": 800.0},
            "ratios running away",
            "0.5 nats per token away from the one that sampled, with ratios up to 800",
        ),
        (
            {"objective/heaviest_token_frac": 0.6},
            "one token carries the gradient",
            "one token had 60.0 % of the squared gradients",
        ),
        ({"mismatch/kl": 0.02}, "sampler and trainer apart", "0.02 nats per token away from the trainer's"),
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


GONE = {"rollout/reward": 0.1, "rollout/correct_frac": 0.1}
ONE_TEXT = {"objective/entropy": 0.002, "rollout/correct_frac": 0.3}


@pytest.mark.parametrize("change", [{"objective/kl_after_update": 0.5}, GONE, ONE_TEXT])
def test_advice_about_a_trust_region_is_given_only_to_methods_that_have_one(change):
    config = {"divergence": {"kind": "none"}}
    course = steps({}, {}, {}, *[change] * 12)
    [with_one] = diagnose(course, facts=RunFacts.of({"divergence": {"kind": "kl3"}}))
    [without] = diagnose(course, facts=RunFacts.of(config))
    assert "trust region" in with_one.text
    assert "trust region" not in without.text
    assert find_collapse(course, facts=RunFacts.of(config)) in (without, None)


UNREAD = {**DEAD, "rollout/no_answer_frac": 1.0}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, r"the grader math extracted an answer from 0.0 %; it looks for \boxed{}"),
        (
            {"grader": {"kind": "numeric", "answer": "Answer: {answer}"}},
            "the grader numeric extracted an answer from 0.0 %; it looks for Answer: {answer}",
        ),
        (
            {"grader": {"kind": "math", "answer": "box"}, "model": {"thinking": True}},
            "the grader math extracted an answer from 0.0 %; it reads the text after </think>",
        ),
        (
            {"grader": {"kind": "mine"}},
            "the grader mine extracted an answer from 0.0 %; check that grader.kind=mine",
        ),
    ],
)
def test_no_signal_without_answers_names_first_what_the_grader_looked_for(config, named):
    [found] = diagnose(steps(*[UNREAD] * 12), facts=RunFacts.of(config))
    assert found.text.replace(" of the completions", "").startswith(f"no signal, steps 1 to 12: {named}")
    assert "choose problems" not in found.text
    assert "max_new_tokens" not in found.text


def test_no_signal_advises_more_tokens_only_where_completions_are_cut_off():
    [silent] = diagnose(steps(*[DEAD] * 12))
    assert "max_new_tokens" not in silent.text
    [silent, _] = diagnose(steps(*[{**DEAD, **CUT}] * 12))
    assert silent.text.endswith("larger groups, or raise rollout.max_new_tokens")


@pytest.mark.parametrize(
    ("change", "config", "contradiction"),
    [
        (CUT, {"reward": {"kind": "correctness", "require_stop": False}}, "raise rollout.max_new_tokens"),
        (CUT, {"reward": {"kind": "format"}}, "raise rollout.max_new_tokens"),
        (DEAD, {"reward": {"kind": "format"}}, "choose problems"),
        ({"objective/entropy": 0.002}, {"regularizer": {"entropy": {"coefficient": 0.1}}}, "add the entropy"),
        (
            {"mismatch/kl": 0.02},
            {"algorithm": {"correction": {"kind": "truncated_importance"}}},
            "choose a correction",
        ),
    ],
)
def test_advice_does_not_contradict_the_settings(change, config, contradiction):
    [plain] = diagnose(steps(*[change] * 12))
    [informed] = diagnose(steps(*[change] * 12), facts=RunFacts.of(config))
    assert contradiction in plain.text
    assert contradiction not in informed.text


def test_cut_off_completions_without_answers_need_more_tokens_whatever_counts():
    facts = RunFacts.of({"reward": {"kind": "correctness", "require_stop": False}})
    [found] = diagnose(steps(*[{**CUT, "rollout/no_answer_frac": 0.8}] * 12), facts=facts)
    assert found.text.endswith("before they could answer; raise rollout.max_new_tokens")


@pytest.mark.parametrize("reward", ["random", "a_plugins_own"])
@pytest.mark.parametrize("no_answer", [0.1, 1.0])
def test_truncation_under_a_reward_without_answers_names_the_reward(reward, no_answer):
    facts = RunFacts.of({"reward": {"kind": reward}})
    [found] = diagnose(steps(*[{**CUT, "rollout/no_answer_frac": no_answer}] * 12), facts=facts)
    assert f"by the length limit, and reward.kind={reward} decides their reward" in found.text
    assert "answer" not in found.text
    assert "max_new_tokens" not in found.text


def test_no_signal_under_random_rewards_does_not_blame_the_grader():
    facts = RunFacts.of({"reward": {"kind": "random"}})
    [found] = diagnose(steps(*[{**DEAD, "rollout/no_answer_frac": 1.0}] * 12), facts=facts)
    assert found.text.endswith("check what reward.kind=random rewards")


def test_a_constant_gate_ratio_is_no_evidence_for_ratios_running_away():
    [found] = diagnose(steps(*[{"objective/kl_after_update": 0.6, "objective/ratio_max": 1.0}] * 12))
    assert found.rule == "ratios running away"
    assert "ratios up to" not in found.text


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        (
            {"rollout/completion_length": 50.0},
            "length without reward",
            "completions grew from 20 to 50 tokens, but reward did not rise (from 0.5 to 0.5)",
        ),
        (
            {"rollout/reward": 0.9},
            "reward by form alone",
            "reward rose from 0.5 to 0.9, but correct answers only from 50.0 % to 50.0 %",
        ),
        (
            {"rollout/reward": 0.1, "rollout/correct_frac": 0.1},
            "reward below its start",
            "mean reward fell from 0.5 at the start to 0.1",
        ),
    ],
)
def test_a_rule_that_compares_with_the_start_shows_both(change, rule, said):
    [found] = diagnose(steps({}, {}, {}, *[change] * 12))
    assert (found.rule, found.first_step, found.last_step) == (rule, 4, 15)
    assert said in found.text
    for name, value in change.items():
        assert (found.start[name], found.evidence[name]) == pytest.approx((HEALTHY[name], value))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rollout/truncated_frac": 0.29},
        {"rollout/no_signal_frac": 0.9, "rollout/correct_frac": 0.95},
        {"rollout/correct_frac": 0.99, "objective/entropy": 1e-6},
        {"rollout/reward": 0.9, "rollout/correct_frac": 0.9, "rollout/completion_length": 50.0},
        {"optimizer/num_updates": 3.0, "optimizer/num_skipped_updates": 1.0},
    ],
)
def test_a_run_that_learns_has_no_findings(change):
    assert diagnose(steps({}, {}, {}, *[change] * 30)) == ()


def test_problem_that_ended_before_the_last_steps_is_not_a_finding():
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


def test_a_running_run_is_compared_with_its_start_however_long_it_runs():
    course = Course(steps({}, {}, {}, *[{"rollout/reward": 0.2}] * 90))
    assert len(course.steps) == NUM_FIRST_STEPS + NUM_STEPS
    [found] = diagnose(course.steps, is_over=False)
    assert (found.rule, found.first_step, found.last_step) == ("reward below its start", 84, 93)
    assert (found.start["rollout/reward"], found.evidence["rollout/reward"]) == pytest.approx((0.5, 0.2))


def test_steps_that_count_from_0_are_compared_with_the_start_like_steps_from_1():
    course = steps({}, {}, {}, *[{"rollout/reward": 0.1}] * 12)
    [found] = diagnose([(step - 1, metrics) for step, metrics in course])
    assert (found.rule, found.first_step, found.last_step) == ("reward below its start", 3, 14)
    assert found.start["rollout/reward"] == 0.5


def test_run_without_its_first_steps_is_not_compared_with_its_start():
    course = Course()
    for step, metrics in steps(*[{}] * 30, *[{"rollout/reward": 0.1}] * 30)[20:]:
        course.add(step, metrics)
    assert diagnose(course.steps) == ()


def test_rewards_that_only_scatter_are_neither_a_fall_nor_a_rise():
    stream = np.random.default_rng(0)
    for _ in range(10):
        notes = Notes(pytest.fail)
        for step, reward in enumerate(stream.binomial(64, 0.3, size=100) / 64, start=1):
            notes.step(step, {**HEALTHY, "rollout/reward": reward, "rollout/correct_frac": 0.3})


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ([DEAD] * NUM_STEPS, "no signal"),
        ([{"objective/entropy": 1e-6}] * NUM_STEPS, "entropy gone"),
        ([{"rollout/reward": 0.1}] * NUM_STEPS, "reward below its start"),
        ([SKIPPED], "divergence"),
        ([{**DEAD, **SOLVED}] * NUM_STEPS, None),
        ([CUT] * NUM_STEPS, None),
        ([DEAD] * (NUM_STEPS - 3) + [{}] + [DEAD] * 2, None),
        ([DEAD] * (NUM_STEPS - 1), None),
    ],
)
def test_collapse_is_found_when_a_run_cannot_recover(changes, rule):
    found = find_collapse(steps({}, {}, {}, *changes))
    assert (found and found.rule) == rule


def test_a_collapse_is_judged_by_as_many_steps_as_are_asked_for():
    dead = steps({}, *[DEAD] * 2)
    assert find_collapse(dead, 2).rule == "no signal"
    assert find_collapse(dead, 3) is None
    assert find_collapse([]) is None


def recorded_runs():
    """Real runs of the built-in model, as `benchmarks/collapse_rules.py --write` kept them."""
    lines = (Path(__file__).parent / "recorded_curves.jsonl").read_text().splitlines()
    runs = [json.loads(line) for line in lines]
    return [pytest.param(run["run"].partition("/")[0], run["columns"], id=run["run"]) for run in runs]


@pytest.mark.parametrize(("design", "columns"), recorded_runs())
def test_runs_that_learned_are_left_alone_and_collapsed_ones_named(design, columns):
    said = []
    notes = Notes(said.append)
    for step, values in enumerate(zip(*columns.values(), strict=True), start=1):
        recorded = zip(columns, values, strict=True)
        notes.step(step, {name: value for name, value in recorded if value is not None})
    if design in ("healthy", "stress_window"):
        assert said == []
    else:
        assert any(text.startswith("note: ratios running away") for text in said)


def test_each_note_is_logged_once_at_the_first_step_that_shows_it():
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
