"""Runs grouped into arms, and arms that are one method."""

from __future__ import annotations

import json
import math

import pytest

from atrium.base.errors import ConfigError
from atrium.compare.arms import are_same_method, group_runs, named_arms

COUNTS = {("exam", 4): [1, 2]}


def grouped(runs, by=()):
    """The arms of the runs, and the notes."""
    return group_runs(runs, named_arms(runs, by))


def test_runs_that_differ_only_in_the_seed_form_an_arm(make_run):
    runs = [make_run(name, seed, COUNTS) for seed in (0, 1) for name in ("grpo", "atr")]
    arms, _ = grouped(runs)
    assert [(arm.name, arm.seeds) for arm in arms] == [("grpo", (0, 1)), ("atr", (0, 1))]
    assert arms[0].window.upper == 1.2


def test_names_of_arms_contain_only_settings_that_distinguish_them(make_run):
    runs = [
        make_run(
            "atr", 0, COUNTS, divergence={"kind": "kl3", "delta": delta}, optimizer={"learning_rate": rate}
        )
        for delta, rate in ((0.01, 1e-4), (0.02, 2e-4))
    ]
    assert [arm.name for arm in grouped(runs)[0]] == ["atr · delta 0.01", "atr · delta 0.02"]
    assert len(grouped(runs, by=["algorithm.name"])[0]) == 1
    with pytest.raises(ConfigError, match="unknown setting"):
        grouped(runs, by=["unknown_key"])


def test_arms_with_equal_windows_and_equal_settings_are_one_method(make_run):
    clip = make_run("clip_higher", 0, COUNTS)
    window = make_run("window", 0, COUNTS, divergence={"kind": "window", "lower": 0.8, "upper": 1.28})
    faster = make_run(
        "window",
        0,
        COUNTS,
        divergence={"kind": "window", "lower": 0.8, "upper": 1.28},
        optimizer={"learning_rate": 1.0},
    )
    other = make_run("grpo", 0, COUNTS)
    arms = [grouped([run])[0][0] for run in (clip, window, faster, other)]
    assert are_same_method(arms[0], arms[1])
    assert not are_same_method(arms[0], arms[2])
    assert not are_same_method(arms[0], arms[3])


def test_arms_of_unknown_kinds_are_compared_by_their_text(make_run):
    def arm(name, delta, **settings):
        settings = {"divergence": {"kind": "of_a_plugin", "delta": delta}, **settings}
        return grouped([make_run(name, 0, COUNTS, **settings)])[0][0]

    near, renamed, far = arm("mine", 0.1), arm("theirs", 0.1), arm("mine", 0.2)
    assert (near.method, near.window) == (None, None)
    assert are_same_method(near, renamed)
    assert not are_same_method(near, far)
    known = grouped([make_run("grpo", 0, COUNTS)])[0][0]
    assert not are_same_method(near, known)


def test_a_plugins_method_is_known_from_what_its_runs_recorded(make_run):
    def arm(name, lower, upper):
        run = make_run(name, 0, COUNTS, divergence={"kind": "of_a_plugin", "delta": 0.1})
        key = {"algorithm": {}, "divergence": [f"{lower:.10g}", str(upper)], "regularizer": {}}
        run.write_method({"window": [lower, upper], "description": {}, "key": key})
        return grouped([run])[0][0]

    near, renamed, open_above = arm("mine", 0.8, 1.2), arm("theirs", 0.8, 1.2), arm("mine", 0.8, None)
    assert (near.window.lower, near.window.upper) == (0.8, 1.2)
    assert open_above.window.upper == math.inf
    assert are_same_method(near, renamed)
    assert not are_same_method(near, open_above)


def test_idle_trust_regions_are_one_method(make_run):
    """With one update per batch every ratio is 1."""

    def arm(name, num_epochs):
        used = {
            "optimizer": {"num_minibatches": 1, "num_epochs": num_epochs},
            "rollout": {"engine": "transformers", "group_size": 8},
            "compute": {"behavior_logprobs": "auto"},
        }
        return grouped([make_run(name, 0, COUNTS, **used)])[0][0]

    assert are_same_method(arm("atr", 1), arm("grpo", 1))
    assert not are_same_method(arm("atr", 2), arm("grpo", 2))


def test_the_latest_of_two_runs_with_one_seed_counts_and_is_noted(make_run):
    runs = [make_run("atr", 0, COUNTS) for _ in range(2)]
    arms, notes = grouped(runs)
    assert len(arms[0].runs) == 1
    assert notes[0].endswith(f"{runs[1].name} counts instead of {runs[0].name}")


def test_a_run_without_readable_settings_is_named(make_run):
    run = make_run("atr", 0, COUNTS)
    run.config_file.write_text("{")
    with pytest.raises(ConfigError, match=r"cannot be compared: config\.json is not valid JSON"):
        grouped([run])


def test_evaluations_of_checkpoints_belong_to_the_arms_of_their_runs(make_run):
    runs = []
    for name, seed in (("atr", 0), ("atr", 1), ("grpo", 0)):
        run = make_run(name, seed, COUNTS, model={"kind": "hub", "source": f"checkpoints/{name}-{seed}"})
        config = json.loads(run.config_file.read_text())
        model = config.pop("model")
        run.write_config(
            {
                "kind": "evaluation",
                "checkpoint": {"run": "study/x", "step": 4},
                "model": model,
                "evaluation": {"seed": 0},
                "not_read": config,
            }
        )
        runs.append(run)
    assert [(arm.name, arm.seeds) for arm in grouped(runs)[0]] == [("atr", (0, 1)), ("grpo", (0,))]
    assert grouped(runs)[0][1].window.upper == 1.2


def test_evaluation_of_another_model_is_an_arm_with_its_name_and_without_a_method(make_run):
    trained, base = make_run("atr", 0, COUNTS), make_run("atr", 0, COUNTS)
    config = json.loads(base.config_file.read_text())
    model = {"kind": "hub", "source": "models/base"}
    base.write_config({"kind": "evaluation", "checkpoint": None, "model": model, "not_read": config})
    arms, _ = grouped([trained, base])
    assert [arm.name for arm in arms] == ["atr", "base"]
    assert arms[1].window is None
    assert not are_same_method(*arms)
