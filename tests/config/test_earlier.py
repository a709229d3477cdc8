"""Recorded runs whose engines ran in places that this version does not have."""

from __future__ import annotations

import json

import pytest

from atrium.config.compose import compose, from_json, to_json
from atrium.config.earlier import placement_note
from atrium.config.evaluation import compose_evaluation, stored_evaluation

BESIDE = {
    "placement": "beside",
    "num_engines": 2,
    "devices": [1, 2],
    "engine_timeout_s": 1800.0,
    "weight_transfer": "nccl",
    "cluster_address": None,
    "allow_open_cluster": False,
}
CLUSTER = BESIDE | {"placement": "cluster", "devices": None, "cluster_address": "10.0.0.1:6379"}


def recorded(*overrides, **rollout):
    """A record with engines in a place of an earlier version."""
    data = json.loads(to_json(compose(list(overrides))))
    del data["rollout"]["num_servers"], data["rollout"]["servers"], data["rollout"]["weights_dir"]
    data["rollout"] |= rollout
    return data


@pytest.mark.parametrize(("place", "devices"), [(BESIDE, (1, 2)), (CLUSTER, None)])
def test_recorded_vllm_outside_the_trainer_becomes_servers(place, devices):
    data = recorded("rollout=vllm", "rollout.lag=2", **place | {"sleep_level": None})
    rollout = from_json(json.dumps(data)).rollout
    assert (rollout.placement, rollout.num_servers, rollout.devices, rollout.lag) == ("server", 2, devices, 2)
    assert placement_note(data) == (
        f"rollout.placement={place['placement']} was removed; this run uses rollout.placement=server "
        "rollout.num_servers=2"
    )


def test_recorded_vllm_that_slept_during_updates_becomes_a_server_that_stays_awake():
    data = recorded("rollout=vllm", **BESIDE | {"num_engines": 1, "devices": None, "sleep_level": 1})
    assert from_json(json.dumps(data)).rollout.sleep_level is None


def test_recorded_vllm_with_stop_strings_becomes_the_one_inside():
    data = recorded("rollout=vllm", "model.prompt={stop: ['=']}", **BESIDE)
    assert from_json(json.dumps(data)).rollout.placement == "inside"


@pytest.mark.parametrize("place", [BESIDE, CLUSTER])
@pytest.mark.parametrize("engine", ["rollout=transformers", "rollout=bank"])
def test_recorded_engine_without_a_server_becomes_the_one_inside(engine, place):
    lines = [engine, *(["rollout.source=some/run"] if engine == "rollout=bank" else [])]
    data = recorded(*lines, **place)
    assert from_json(json.dumps(data)) == compose(lines)
    assert placement_note(data).endswith("was removed; this run uses rollout.placement=inside")


def test_recorded_engine_inside_loses_the_settings_of_other_places_without_a_note():
    data = recorded(**BESIDE | {"placement": "inside", "num_engines": 1, "devices": None})
    data["rollout"]["weight_transfer"] = "host"
    assert from_json(json.dumps(data)) == compose([])
    assert placement_note(data) is None


def test_recorded_evaluation_by_engines_beside_it_is_resumed_inside(tmp_path):
    record = compose_evaluation(["rollout=transformers"]).as_record()
    record["rollout"] |= BESIDE
    stored = stored_evaluation(json.dumps(record), tmp_path / "evaluations" / "one")
    assert stored.config.rollout == compose_evaluation(["rollout=transformers"]).config.rollout
