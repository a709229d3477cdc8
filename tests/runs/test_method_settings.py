"""What of a run's settings tells methods apart, for sweeps, comparisons and trackers alike."""

from __future__ import annotations

import json

import pytest

from atrium.compare.arms import group_runs, named_arms
from atrium.compare.run_settings import method_keys
from atrium.config.compose import compose
from atrium.method.method import Method
from atrium.runs.method_settings import method_key, use_of
from atrium.runs.mirrors.description import describe_run
from atrium.runs.run_folder import RunFolder

CHANGES = {"compute.dtype": "bfloat16", "compute.behavior_logprobs": "recompute", "optimizer.beta1": 0.5}
PLACES = {
    "compute.num_threads": 2,
    "experiment_name": "elsewhere",
    "checkpoint.keep_last": 7,
    "seed": 3,
    "rollout.placement": "server",
    "rollout.num_servers": 2,
    "rollout.unit_samples": 64,
}
BASE = {
    "seed": 0,
    "num_steps": 4,
    "experiment_name": "here",
    "algorithm": {"name": "atr"},
    "checkpoint": {"keep_last": 2},
    "compute": {"dtype": "float32", "behavior_logprobs": "engine", "num_threads": 1},
    "optimizer": {"beta1": 0.9},
    "rollout": {"group_size": 8},
}


@pytest.fixture
def record(tmp_path):
    """A run directory that holds nothing but its settings, one of them changed."""

    def make(number, key=None, value=None):
        config = {name: dict(part) if isinstance(part, dict) else part for name, part in BASE.items()}
        if key is not None:
            section, _, name = key.rpartition(".")
            (config[section] if section else config)[name] = value
        folder = RunFolder.create(tmp_path / "runs", "study", "atr", number)
        folder.write_config(config)
        return folder

    return make


def key_of(config):
    """What sweeps tell methods apart by."""
    return method_key(config.model_dump(mode="json"), at_last_step=True)


def num_apart(folders):
    """How many methods the runs are to comparisons and to trackers."""
    return len(group_runs(folders, named_arms(folders))[0]), len(
        {describe_run(folder, 0.0).group for folder in folders}
    )


@pytest.mark.parametrize("key", CHANGES)
def test_settings_that_change_numbers_distinguish_methods(record, key):
    assert num_apart([record(0), record(1, key, CHANGES[key])]) == (2, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [("placement", "beside"), ("num_engines", 2), ("engine_timeout_s", 9.0), ("cluster_address", "a:1")],
)
def test_placement_settings_of_earlier_versions_do_not_distinguish_methods(record, key, value):
    assert num_apart([record(0), record(1, f"rollout.{key}", value)]) == (1, 1)


@pytest.mark.parametrize("key", PLACES)
def test_seeds_placement_and_machines_do_not_distinguish_methods(record, key):
    assert num_apart([record(0), record(1, key, PLACES[key])]) == (1, 1)
    base = compose(["seed=0"])
    section, _, name = key.rpartition(".")
    changed = base.model_dump()
    (changed[section] if section else changed)[name] = PLACES[key]
    assert key_of(type(base).model_validate(changed)) == key_of(base)


def test_num_steps_distinguishes_methods_only_at_the_last_step(record):
    folders = [record(0), record(1, "num_steps", 8)]
    assert len(group_runs(folders, named_arms(folders))[0]) == 2
    flat = [{"num_steps": "4"}, {"num_steps": "8"}]
    assert method_keys(flat) == [], "curves are compared step by step"
    assert key_of(compose(["num_steps=40"])) != key_of(compose(["num_steps=80"]))


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.num_minibatches=1"],
        ["algorithm=gvpo", "rollout.lag=1"],
        ["compute.behavior_logprobs=engine", "rollout.lag=1"],
        ["rollout=bank", "rollout.source=elsewhere"],
    ],
)
def test_use_of_a_method_is_read_from_a_recorded_run(overrides):
    config = compose(overrides)
    recorded = json.loads(json.dumps(config.model_dump(mode="json")))
    assert use_of(recorded) == config.use
    assert Method.read(recorded) == config.method
    assert use_of({"rollout": {"engine": "bank"}}) is None


def test_method_of_another_version_is_identified_by_its_recorded_settings():
    recorded = compose([]).model_dump(mode="json")
    unknown = [
        recorded | {"divergence": {"kind": "of_a_plugin", "delta": delta}} for delta in (0.1, 0.1, 0.2)
    ]
    assert Method.read(unknown[0]) is None
    keys = [method_key(config) for config in unknown]
    assert keys[0] == keys[1] != keys[2]
    surrogate = {"algorithm": recorded["algorithm"] | {"surrogate": {"kind": "of_a_plugin"}}}
    assert Method.read(recorded | surrogate) is None
    assert Method.read({"algorithm": None}) is None
