"""What of a run's settings tells methods apart, for sweeps, comparisons and trackers alike."""

from __future__ import annotations

import pytest

from atrium.compare.arms import group_runs
from atrium.compare.run_settings import method_keys
from atrium.config.compose import compose
from atrium.sweep.coincidence import method_key
from atrium.tracking.mirrors.description import describe_run
from atrium.tracking.run_folder import RunFolder

CHANGES = {"compute.dtype": "bfloat16", "compute.behavior_logprobs": "recompute", "optimizer.beta1": 0.5}
PLACES = {"compute.num_threads": 2, "experiment_name": "elsewhere", "checkpoint.keep_last": 7, "seed": 3}
BASE = {
    "seed": 0,
    "num_steps": 4,
    "experiment_name": "here",
    "algorithm": {"name": "atr"},
    "checkpoint": {"keep_last": 2},
    "compute": {"dtype": "float32", "behavior_logprobs": "engine", "num_threads": 1},
    "optimizer": {"beta1": 0.9},
}


@pytest.fixture
def record(tmp_path):
    """A run folder that holds nothing but its settings, one of them changed."""

    def make(number, key=None, value=None):
        config = {name: dict(part) if isinstance(part, dict) else part for name, part in BASE.items()}
        if key is not None:
            section, _, name = key.rpartition(".")
            (config[section] if section else config)[name] = value
        folder = RunFolder.create(tmp_path / "runs", "study", "atr", number)
        folder.write_config(config)
        return folder

    return make


def num_apart(folders):
    """How many methods the runs are to comparisons and to trackers."""
    return len(group_runs(folders).arms), len({describe_run(folder, 0.0).group for folder in folders})


@pytest.mark.parametrize("key", CHANGES)
def test_what_changes_numbers_tells_methods_apart(record, key):
    assert num_apart([record(0), record(1, key, CHANGES[key])]) == (2, 2)


@pytest.mark.parametrize("key", PLACES)
def test_seeds_places_and_machines_tell_no_methods_apart(record, key):
    assert num_apart([record(0), record(1, key, PLACES[key])]) == (1, 1)
    base = compose(["seed=0"])
    section, _, name = key.rpartition(".")
    changed = base.model_dump()
    (changed[section] if section else changed)[name] = PLACES[key]
    assert method_key(type(base).model_validate(changed)) == method_key(base)


def test_lengths_tell_runs_apart_where_each_is_taken_at_its_last_step(record):
    folders = [record(0), record(1, "num_steps", 8)]
    assert len(group_runs(folders).arms) == 2
    flat = [{"num_steps": "4"}, {"num_steps": "8"}]
    assert method_keys(flat) == [], "curves are compared step by step"
    assert method_key(compose(["num_steps=40"])) != method_key(compose(["num_steps=80"]))
