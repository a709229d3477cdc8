"""Definitions and plans: mistakes are found before the first trial, equal methods are one trial."""

from __future__ import annotations

import pytest

from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.runs.method_settings import method_key
from atrium.sweep.files import find_definition, read_definition, shipped_names, tiny
from atrium.sweep.plan import Stage, count_runs, plan_stage
from atrium.sweep.study import stages_of

SHIPPED = {
    "delta",
    "cppo",
    "cppo_paper_1_7b",
    "same_class",
    "smollm2_verdict",
    "cppo_rates",
    "clip_range",
    "window",
    "divergence",
    "matched_width",
    "learning_rate",
    "rpg",
    "gvpo_beta",
    "multi_objective",
    "speed",
    "speed_upper",
    "safety",
    "shapes",
    "axes",
    "dual_clip",
    "front_rates",
    "front",
    "staleness_rates",
    "staleness",
    "delta_qwen3_1_7b",
    "clip_range_qwen3_1_7b",
    "atr_laptop",
    "atr_day",
    "atr_paper_1_7b",
    "atr_paper_8b",
}


def test_the_sweeps_that_are_promised_are_shipped():
    assert set(shipped_names()) == SHIPPED


# Composing takes most of the time; the others are composed by `make test-full`.
QUICK = {"delta", "divergence", "matched_width", "speed"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in sorted(SHIPPED)],
)
def test_each_shipped_sweep_can_be_run_in_its_smallest_form(name, tmp_path):
    whole = read_definition(find_definition(name), runs_dir=str(tmp_path))
    definition = tiny(whole)
    assert definition.final is None or definition.final.settings == whole.final.settings
    definition = definition.model_copy(update={"trials": 2})
    for stage in set(stages_of(definition)) - {Stage.FINAL}:
        assert plan_stage(definition, stage)


def test_the_budgets_of_a_language_model_have_the_windows_of_the_clip_ranges_that_they_meet():
    definition = read_definition(find_definition("delta_qwen3_1_7b"))
    uppers = [
        [round(trial.window[1], 4) for trial in plan_stage(definition, stage)]
        for stage in (Stage.SEARCH, Stage.BASELINE)
    ]
    assert uppers[0] == uppers[1] == [1.1, 1.2, 1.28, 1.4]
    assert count_runs(definition) == {Stage.SEARCH: 12, Stage.BASELINE: 12, Stage.FINAL: 10}
    planned = read_definition(find_definition("matched_width"))
    assert count_runs(planned)[Stage.FINAL] == 35  # every setting meets the baseline


def test_each_shipped_sweep_says_what_it_asks_and_uses_several_seeds():
    for name in SHIPPED:
        definition = read_definition(find_definition(name))
        assert definition.question.endswith("?")
        assert len(definition.seeds) >= 3
        assert definition.final is None or len(definition.final.seeds) >= 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space": {"divergence.detla": {"low": 0.1, "high": 0.2}}}, "did you mean divergence.delta"),
        (
            {"space": {"divergence.delta": {"low": 0.2, "high": 0.1}}},
            "low must be less than high, got low=0.2 and high=0.1",
        ),
        (
            {"space": {"divergence.delta": {"low": -1.0, "high": 0.1}}},
            "divergence.delta must be at least 1e-12, got -1",
        ),
        (
            {"space": {"rollout.group_size": {"choices": ["many"]}}},
            "rollout.group_size must be a whole number, got many",
        ),
        ({"space": {"algorithm": {"choices": ["grpoo"]}}}, "did you mean grpo"),
        (
            {"space": {"divergence.delta": {"low": 0.0, "high": 1.0, "log": True}}},
            "low must be greater than 0",
        ),
        (
            {"space": {"divergence.delta": {"low": 0.1}}},
            "space.divergence.delta: a parameter must have either low and high, or",
        ),
        (
            {"space": {"divergence.delta": {"low": 0.1, "high": 0.2, "num": 1}}},
            "space.divergence.delta.num must be at least 2, got 1",
        ),
        ({"space": {"divergence.delta": {"lo": 0.1, "high": 1.0}}}, "unknown key; did you mean"),
        ({"space": {}}, "must vary at least one setting"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "seeds must be different, got 1, 1"),
        ({"base": ["seed=3"]}, "seed cannot be set in a sweep: every configuration runs with each"),
        ({"base": ["resume=last"]}, "resume cannot be set in a sweep"),
        ({"space": {"seed": {"choices": [1, 2]}}}, "use seeds=0,1,2"),
        (
            {"baseline": {}, "final": {"seeds": [0, 7]}},
            "final.seeds must not contain seeds of the search, got 0",
        ),
        ({"sampler": {"kind": "gird"}}, "did you mean grid"),
        (
            {"arms": {"a": {"divergence.delta": {"function": "equal", "of": "eps"}}}},
            "divergence.delta.of must name a variable, got eps",
        ),
        (
            {"objectives": [{"metric": "entropy"}], "pruner": {"curve": "median"}},
            "pruner.curve=median cannot be used with the objective entropy",
        ),
        (
            {"objectives": [{"metric": "pass_at_k"}], "pruner": {"between_seeds": "wilcoxon"}},
            "pruner.between_seeds must be none for the objective pass_at_k",
        ),
    ],
)
def test_a_wrong_sweep_is_refused_in_one_line_before_the_first_trial(define, changes, said):
    with pytest.raises(ConfigError) as caught:
        plan_stage(define(**changes), Stage.SEARCH)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(("test.yaml", "sweep small"))


def test_a_sampler_that_chooses_later_has_its_ends_checked_now(define):
    definition = define(
        sampler={"kind": "tpe"}, space={"rollout.num_prompts": {"choices": [64, 7]}}, trials=5
    )
    with pytest.raises(ConfigError, match=r"rollout.num_prompts: optimizer.num_minibatches must divide"):
        plan_stage(definition, Stage.SEARCH)


def test_a_sweep_of_delta_with_one_update_per_batch_is_refused(define):
    definition = define(base=["algorithm=atr", "optimizer.num_minibatches=1", "optimizer.num_epochs=1"])
    with pytest.raises(ConfigError, match="one update per batch leaves every ratio at 1"):
        plan_stage(definition, Stage.SEARCH)


def test_arms_of_equal_windows_are_one_trial_with_all_their_names(define):
    definition = define(
        base=["experiment=stress", "algorithm=grpo"],
        space={},
        arms={
            "ratio": {"divergence": "ratio", "divergence.delta": 0.2},
            "chi2": {"divergence": "chi2", "divergence.delta": 0.02},
            "kl3": {"divergence": "kl3", "divergence.delta": 0.02},
        },
    )
    trials = plan_stage(definition, Stage.SEARCH)
    assert [trial.labels for trial in trials] == [("ratio", "chi2"), ("kl3",)]
    assert trials[0].window == pytest.approx([0.8, 1.2])


def test_the_name_of_a_method_does_not_tell_methods_apart_but_its_settings_do():
    atr = compose(["algorithm=atr", "divergence.delta=0.05"])
    grpo = compose(["algorithm=grpo", "divergence=kl3", "divergence.delta=0.05", "seed=3"])
    other = compose(["algorithm=grpo", "divergence=kl3", "divergence.delta=0.06"])
    keys = [method_key(config.model_dump(mode="json")) for config in (atr, grpo, other)]
    assert keys[0] == keys[1] != keys[2]
    assert atr.method.same_as(grpo.method, atr.use)
    assert not atr.method.same_as(other.method, atr.use)
    assert compose(["algorithm=grpo", "divergence=state_kl"]).divergence.fixed_window() is None


def test_a_path_that_is_no_sweep_and_a_name_that_is_none_are_said(tmp_path):
    with pytest.raises(ConfigError, match="did you mean delta"):
        find_definition("detla")
    with pytest.raises(ConfigError, match="there is no such file"):
        find_definition(str(tmp_path / "mine.yaml"))
    (tmp_path / "bad.yaml").write_text("zzzqqq: 1")
    with pytest.raises(ConfigError, match="unknown key zzzqqq; use ") as caught:
        read_definition(tmp_path / "bad.yaml")
    assert "contrasts" not in str(caught.value)
    (tmp_path / "bad.yaml").write_text("question: [")
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        read_definition(tmp_path / "bad.yaml")
