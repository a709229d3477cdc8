"""The configuration of an evaluation: what it takes, what it refuses, and what it stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atrium.base.errors import ConfigError, RunFolderError
from atrium.config.compose import compose, from_json
from atrium.config.evaluation import (
    SECTIONS,
    EvaluatedCheckpoint,
    checkpoint_evaluation,
    compose_evaluation,
    stored_evaluation,
)

CHECKPOINT = EvaluatedCheckpoint(run="quickstart/one", step=40, seed=3)


def of_checkpoint(*overrides, trained=()):
    return checkpoint_evaluation(
        compose(trained), CHECKPOINT, policy=Path("/runs/p o/policy"), overrides=overrides
    )


def test_a_hub_model_is_sampled_as_in_the_literature_unless_a_choice_is_made():
    hub = ("model=hub", "model.source=somebody/model")
    config = compose_evaluation(hub).config
    assert (config.evaluation.temperature, config.evaluation.top_p) == (0.6, 0.95)
    assert config.evaluation.max_new_tokens == 32_768
    assert config.model.prompt.name == "qwen_boxed"
    chosen = compose_evaluation([*hub, "evaluation=sampled"]).config.evaluation
    assert (chosen.temperature, chosen.top_p) == (1.0, 1.0)
    assert compose_evaluation([*hub, "evaluation.temperature=0.9"]).config.evaluation.temperature == 0.9


def test_a_described_model_is_sampled_as_its_authors_do_with_answers_as_long_as_in_the_literature():
    config = compose_evaluation(["model=hub", "model.source=Qwen/Qwen2.5-Math-1.5B"]).config
    assert (config.evaluation.temperature, config.evaluation.top_p) == (0.7, 0.8)
    assert config.evaluation.max_new_tokens == 32_768
    config = compose_evaluation(["model=hub", "model.source=Qwen/Qwen3-1.7B"]).config
    assert (config.model.prompt.name, config.model.thinking) == ("qwen3_thinking", True)
    assert (config.evaluation.temperature, config.evaluation.top_p) == (0.6, 0.95)


def test_an_option_without_a_length_gives_a_checkpoints_answers_the_length_of_its_runs_rollouts():
    trained = ("rollout.max_new_tokens=48",)
    assert of_checkpoint("evaluation=greedy", trained=trained).config.evaluation.max_new_tokens == 48


def test_the_built_in_model_is_sampled_on_policy():
    config = compose_evaluation([]).config
    assert (config.evaluation.temperature, config.evaluation.top_p) == (1.0, 1.0)
    assert config.experiment_name == "evaluations"
    assert compose_evaluation(["experiment_name=mine"]).config.experiment_name == "mine"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "evaluation.seed"),
        ("algorithm=grpo", "has no effect on an evaluation"),
        ("optimizer.learning_rate=1e-4", "has no effect on an evaluation"),
        ("evaluation.pass_at=[16]", "evaluation.pass_at must be at most evaluation.num_samples="),
        ("evaluation.num_sample=4", "num_samples"),
        ("rollout.num_prompts=8", "has no effect on an evaluation"),
        ("experiment=stress", "changes only settings for training"),
    ],
)
def test_settings_without_effect_and_impossible_ones_are_refused_by_name(override, message):
    with pytest.raises(ConfigError, match=message):
        compose_evaluation([override])


def test_a_checkpoint_is_evaluated_as_its_run_evaluates_unless_told_otherwise():
    trained = ("evaluation.num_samples=3", "model.context_length=96", "grader.timeout_s=7.0", "seed=5")
    settings = of_checkpoint(trained=trained)
    config = settings.config
    assert (config.model.kind, config.model.source) == ("hub", "/runs/p o/policy")
    assert (config.model.prompt.name, config.model.thinking) == ("question", False)
    assert config.evaluation == compose(trained).evaluation
    assert config.grader.timeout_s == 7.0
    assert settings.step == 40
    changed = of_checkpoint("evaluation=greedy", "model.prompt=qwen_boxed", trained=trained).config
    assert (changed.evaluation.temperature, changed.evaluation.num_samples) == (0.0, 1)
    assert changed.model.prompt.name == "qwen_boxed"
    longer = of_checkpoint("evaluation.max_new_tokens=500", trained=trained).config
    assert (longer.evaluation.max_new_tokens, longer.evaluation.num_samples) == (500, 3)


@pytest.mark.parametrize(
    "override", ["model=tiny", "model.source=x", "experiment=stress", "debug=tiny_steps"]
)
def test_what_would_change_the_runs_own_model_or_settings_is_refused(override):
    with pytest.raises(ConfigError, match=override):
        of_checkpoint(override)


def test_vllm_has_the_gpu_for_itself_in_an_evaluation_unless_told_otherwise():
    lines = ["model=qwen3_0_6b", "rollout=vllm", "rollout.sleep_level=1"]
    own = compose_evaluation(lines[:2]).config.rollout
    assert (own.gpu_memory_fraction, own.sleep_level) == (0.9, None)
    typed = compose_evaluation([*lines, "rollout.gpu_memory_fraction=0.5"]).config.rollout
    assert (typed.gpu_memory_fraction, typed.sleep_level) == (0.5, 1)
    found = of_checkpoint(trained=lines).config.rollout
    assert (found.gpu_memory_fraction, found.sleep_level) == (0.9, None)


def test_servers_of_an_evaluation_are_chosen_for_it_alone():
    """They are no part of the run, which may have left a GPU to its trainer."""
    served = ("rollout.placement=server", "rollout.num_servers=5", "rollout.devices=[0,1,2,3,4]")
    trained = ("rollout=vllm_cpu", "rollout.placement=server", "rollout.num_servers=2", "rollout.lag=1")
    own = of_checkpoint(trained=trained).config.rollout
    assert (own.placement, own.num_servers, own.lag) == ("inside", 1, 0)
    typed = compose_evaluation(["rollout=vllm_cpu", *served]).config
    for config in (typed, of_checkpoint(*served, trained=trained).config):
        assert (config.rollout.placement, config.rollout.num_servers) == ("server", 5)
        assert config.rollout.devices == (0, 1, 2, 3, 4)
        assert config.rollout.kv_cache_mb == 64
    with pytest.raises(ConfigError, match=r"rollout\.num_servers=5.*choose rollout\.placement=server"):
        compose_evaluation(["rollout=vllm_cpu", served[1]])
    with pytest.raises(ConfigError, match=r"evaluation\.temperature must be at most 2 .*, got 3"):
        of_checkpoint(served[0], "evaluation.temperature=3", trained=trained)
    with pytest.raises(ConfigError, match=r"rollout\.engine=transformers, which has no server"):
        of_checkpoint(served[0], trained=("rollout=transformers",))


def test_server_of_an_evaluation_is_split_where_this_is_typed():
    split = ("rollout.placement=server", "rollout.num_servers=2", "rollout.tensor_parallel=2")
    trained = ("rollout=vllm_cpu", *split, "rollout.num_prompts=12", "optimizer.num_minibatches=1")
    assert of_checkpoint(trained=trained).config.rollout.processes_per_engine == 1
    typed = of_checkpoint(*split, "rollout.devices=[0,1,2,3]", trained=trained).config.rollout
    assert (typed.engine, typed.num_servers, typed.processes_per_engine) == ("vllm", 2, 2)
    assert compose_evaluation(["rollout=vllm", *split]).config.rollout.processes_per_engine == 2
    with pytest.raises(ConfigError, match="unknown key"):
        of_checkpoint(*split, trained=("rollout=transformers",))
    with pytest.raises(ConfigError, match=r"must divide compute\.num_processes=1"):
        of_checkpoint(split[2], trained=trained)


def test_stored_rollouts_answer_no_benchmark():
    bank = ("rollout=bank", "rollout.source=some/run")
    with pytest.raises(ConfigError, match="cannot answer a benchmark"):
        compose_evaluation(bank)
    assert of_checkpoint(trained=bank).config.rollout.engine == "transformers"


def test_a_run_whose_method_would_be_refused_today_can_still_be_evaluated():
    record = compose(["algorithm=gvpo"]).model_dump(mode="json")
    record["algorithm"]["group_filter"] = {
        "kind": "skip",
        "max_num_rounds": 1,
    }  # as an older version wrote it
    text = json.dumps(record)
    with pytest.raises(ConfigError, match=r"group_filter\.kind=skip"):
        from_json(text)
    trained = from_json(text, trains=False)
    assert trained.algorithm.group_filter.judge == "reward"
    settings = checkpoint_evaluation(trained, CHECKPOINT, policy=Path("/runs/policy"), overrides=[])
    stored = stored_evaluation(json.dumps(settings.as_record()), Path("/runs/evaluations/one"))
    assert stored.config.algorithm == trained.algorithm


def test_what_is_stored_gives_the_same_settings_where_the_folder_lies_now():
    settings = of_checkpoint("evaluation.num_samples=2", trained=("algorithm=dr_grpo", "seed=3"))
    record = settings.as_record()
    assert record["kind"] == "evaluation"
    assert record["checkpoint"] == {"run": "quickstart/one", "step": 40, "seed": 3}
    assert not {"algorithm", "optimizer", "divergence", "seed"} & record.keys()
    assert record.keys() >= set(SECTIONS)
    again = stored_evaluation(json.dumps(record), Path("/else/where/evaluations/x"))
    assert again.checkpoint == CHECKPOINT
    assert again.config == settings.config.model_copy(update={"runs_dir": "/else/where"})


def test_draws_are_keyed_by_the_seed_of_the_run_that_trained_the_policy_and_of_no_other():
    settings = of_checkpoint(trained=("seed=3",))
    assert settings.run_seed == 3
    assert compose_evaluation([]).run_seed is None
    record = settings.as_record()
    del record["checkpoint"]["seed"]
    begun_before = stored_evaluation(json.dumps(record), Path("/else/where/evaluations/x"))
    assert begun_before.run_seed is None, "what was begun with shared draws goes on with them"


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps(compose([]).model_dump(mode="json"))])
def test_what_is_no_evaluation_cannot_be_resumed(text):
    with pytest.raises(RunFolderError, match=r"config\.json is not valid JSON|is not an evaluation"):
        stored_evaluation(text, Path("runs/e/x"))
