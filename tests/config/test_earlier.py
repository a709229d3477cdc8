"""Recorded runs whose engines ran in places that this version does not have."""

from __future__ import annotations

import json

import pytest

from atrium.base.errors import ConfigError
from atrium.config.compose import compose, from_json, to_json
from atrium.config.evaluation import compose_evaluation, stored_evaluation

INSIDE = {
    "placement": "inside",
    "num_engines": 1,
    "devices": None,
    "engine_timeout_s": 1800.0,
    "weight_transfer": "host",
    "cluster_address": None,
    "allow_open_cluster": False,
}


def recorded(record: dict, **rollout) -> dict:
    """A record with engines in a place of an earlier version."""
    for name in ("num_servers", "servers", "weights_dir"):
        del record["rollout"][name]
    record["rollout"] |= rollout
    return record


def test_recorded_engine_inside_loses_the_settings_of_other_places():
    data = recorded(json.loads(to_json(compose([]))), **INSIDE)
    assert from_json(json.dumps(data)) == compose([])


@pytest.mark.parametrize("place", ["beside", "cluster"])
def test_recorded_engine_outside_the_trainer_is_refused_in_one_line(place, tmp_path):
    outside = INSIDE | {"placement": place, "num_engines": 2, "cluster_address": "10.0.0.1:6379"}
    run = recorded(json.loads(to_json(compose(["rollout=vllm", "rollout.lag=2"]))), **outside)
    evaluation = recorded(compose_evaluation(["rollout=transformers"]).as_record(), **outside)
    said = (
        rf"^rollout\.placement={place}: this placement was removed; choose rollout\.placement=server[^\n]*$"
    )
    with pytest.raises(ConfigError, match=said):
        from_json(json.dumps(run))
    with pytest.raises(ConfigError, match=said):
        stored_evaluation(json.dumps(evaluation), tmp_path / "evaluations" / "one")


def test_recorded_evaluation_by_the_engine_inside_is_resumed(tmp_path):
    record = recorded(compose_evaluation(["rollout=transformers"]).as_record(), **INSIDE)
    stored = stored_evaluation(json.dumps(record), tmp_path / "evaluations" / "one")
    assert stored.config.rollout == compose_evaluation(["rollout=transformers"]).config.rollout
