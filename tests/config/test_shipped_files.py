"""Every file of `conf/` says what it is, composes, and names no code."""

from __future__ import annotations

import functools
import re

import pytest
import yaml

from atrium.base.errors import ConfigError
from atrium.config.compose import compose, validated
from atrium.config.files import conf_folder, read_groups
from atrium.config.overrides import calls_something

CONF = conf_folder()
FILES = sorted(CONF.rglob("*.yaml"))
GROUPS = read_groups(CONF)
NEEDS = {
    "model=hub": "model.source=Qwen/Qwen3-0.6B",
    "compute=cuda": "compute.device=cpu",  # the file's own device is refused where torch has no CUDA
    "compute=one_gpu": "compute.device=cpu",
    "compute=slurm": "compute.device=cpu",
    "compute=multi_node": "compute.rendezvous=node0:29500",
    "optimizer=adamw_bf16": "compute.dtype=bfloat16",
    "divergence=sequence_mean": "algorithm.surrogate.kind=mask",
    "reward=rpg_overlong": "reward.overlong.buffer_tokens=32",  # the file's suits completions of thousands
    "rollout=bank": "rollout.source=x",
    "rollout=bank_and_live": "rollout.source=x",
    "algorithm=gvpo_offpolicy": "rollout.source=x",
    "dataset=file": "dataset.source=problems.jsonl",
    "dataset=reasoning_gym": "dataset.task=gcd",
    "benchmark=file": "benchmark.source=problems.jsonl",
    "benchmark=held_out": "dataset.num_test=10",
}
OBJECTIVE = {"algorithm", "divergence", "regularizer"}
INDEPENDENT = sorted(set(GROUPS) - OBJECTIVE - {"experiment", "debug"})


def _nth(group, index):
    """The group's option of that number, from the start again after the last."""
    return GROUPS[group][index % len(GROUPS[group])]


def _data(group, option):
    return yaml.safe_load((CONF / group / f"{option}.yaml").read_text(encoding="utf-8"))


@functools.cache
def _composed(*lines):
    """The configuration with these options and what they need, as plain data."""
    overrides = [*lines, *(NEEDS[line] for line in lines if line in NEEDS)]
    return compose(overrides).model_dump(mode="json")


def _faults(path):
    """What is wrong with a file, by the names of the rules."""
    text = path.read_text(encoding="utf-8")
    comments = [line for line in text.splitlines()[:2] if not line.startswith("# @package")]
    kept = {
        # A claim is its own statement.
        "begins with what it is": "claim" in path.parts or re.match(r"# .{15}", "".join(comments[:1])),
        "names no code": "_target_" not in text,
        "is not empty": yaml.load(text, yaml.CSafeLoader) is not None,
        "calls nothing": path == CONF / "config.yaml" or not calls_something(text),
    }
    return [rule for rule, holds in kept.items() if not holds]


def test_every_file_begins_with_what_it_is_and_names_no_code():
    assert len(FILES) > 200
    assert {str(path.relative_to(CONF)): faults for path in FILES if (faults := _faults(path))} == {}


@pytest.mark.parametrize("name", GROUPS["algorithm"])
def test_an_algorithm_composes_under_the_name_of_its_file(name):
    assert _composed(f"algorithm={name}")["algorithm"]["name"] == name


@pytest.mark.parametrize("name", GROUPS["divergence"])
def test_a_divergence_composes(name):
    is_width = _data("divergence", name).get("delta_high", 0.0) > 1.0  # only `quadratic` divides by it
    composed = _composed(f"algorithm={'spo' if is_width else 'grpo'}", f"divergence={name}")
    assert composed["divergence"].items() >= _data("divergence", name).items()


@pytest.mark.parametrize("name", GROUPS["regularizer"])
def test_a_regularizer_composes(name):
    is_referred = "anchor: reference" in (CONF / "regularizer" / f"{name}.yaml").read_text(encoding="utf-8")
    reference = ["algorithm.reference.kind=frozen"] if is_referred else []
    assert _composed("algorithm=grpo", f"regularizer={name}", *reference) is not None


@pytest.mark.parametrize("index", range(max(len(GROUPS[group]) for group in INDEPENDENT)))
def test_the_options_of_all_other_parts_compose(index):
    chosen = {group: _nth(group, index) for group in INDEPENDENT}
    if chosen["benchmark"] == "arithmetic":  # the test problems of that dataset
        chosen["dataset"] = "arithmetic"
    if chosen["dataset"] == "reasoning_gym":
        chosen["grader"] = "reasoning_gym"  # its tasks have their own scorers
    chosen["recipe"] = chosen["model"]  # another one's scale may be refused
    # Other optimisers are for all weights of one process.
    if chosen["compute"] == "multi_node" or chosen["model"].endswith("_lora"):
        chosen["optimizer"] = "adamw"
    composed = _composed(*(f"{group}={option}" for group, option in chosen.items()))
    assert composed["reward"]["kind"] == _data("reward", _nth("reward", index)).get("kind", "correctness")


def test_the_defaults_list_names_every_group():
    defaults = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    named = {next(iter(entry)) for entry in defaults if isinstance(entry, dict)}
    assert set(GROUPS) <= named


def test_every_algorithm_meets_every_divergence_or_says_why_not():
    algorithms = [_composed(f"algorithm={name}") for name in GROUPS["algorithm"]]
    divergences = [_data("divergence", name) for name in GROUPS["divergence"]]
    num_met = 0
    for algorithm in algorithms:
        for divergence in divergences:
            try:
                config = validated({**algorithm, "divergence": divergence})
            except ConfigError as error:
                assert "divergence" in str(error)  # noqa: PT017 - either outcome is right
                continue
            assert config.divergence.kind == divergence["kind"]
            num_met += 1
    assert num_met >= len(algorithms) + len(divergences)


@pytest.mark.parametrize("experiment", GROUPS["experiment"])
def test_every_experiment_can_be_debugged(experiment):
    config = compose([f"experiment={experiment}", "debug=tiny_steps", "algorithm=reinforce"])
    assert (config.algorithm.name, config.num_steps) == ("reinforce", 3)


def test_the_small_debugging_run_is_small():
    config = compose(["debug=tiny_steps"])
    warmup = config.model.warmup
    assert warmup.num_clean_steps + warmup.num_imperfect_steps == 20
    assert config.num_steps == 3
    assert config.rollout.num_prompts * config.rollout.group_size == 16
    assert config.dataset.num_validation == config.dataset.num_test == 8
    assert (config.model.hidden_size, config.reward.kind) == (32, "random")
