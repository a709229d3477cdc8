"""Whole runs on stored rollouts: what ratios are taken against, what is rewarded, mixed groups, resuming."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.assemble.conftest import assert_same_weights, metrics_of, rollouts_of

from atrium.base.errors import ConfigError, DataError, RunFolderError
from atrium.base.json_lines import read_json_lines
from atrium.base.records import STORED_VERSION
from atrium.config.compose import compose

ONE_UPDATE = ("algorithm=grpo", "optimizer.num_minibatches=1")
EVERY = "tracking.rollouts_every_num_steps=1"


@pytest.fixture
def recorded(runs):
    """A run whose rollouts were all recorded, at a learning rate that moves the policy."""
    if not (runs.runs_dir / "recorded").is_dir():
        runs.train("algorithm=grpo", "experiment_name=recorded", "optimizer.learning_rate=0.01", EVERY)
    return runs.only("recorded")


def rows_of(folder):
    return [row for path in sorted(folder.rollouts_dir.iterdir()) for row in pq.read_table(path).to_pylist()]


def records_of(folder):
    return read_json_lines(folder.metrics_file).records


def text_file(path, folder):
    """The texts and rewards of a run as a table of one's own, without tokens or log-probabilities."""
    rows = [
        {
            "prompt": row["question"],
            "completion": row["text"],
            "reward": 10.0 + row["sample_index"],
            "finish_reason": row["finish_reason"],
        }
        for row in rows_of(folder)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_stored_log_probabilities_anchor_the_ratio_even_at_the_only_update(runs, recorded):
    folder = runs.train(
        *ONE_UPDATE, "rollout=bank", f"rollout.source={recorded.name}", "experiment_name=bank", EVERY
    )
    first = records_of(folder)[0]
    assert first["objective/ratio_max"] > 1.01
    assert first["objective/ratio_min"] < 0.99
    assert "mismatch/kl" not in first  # nothing was sampled by this run's engine
    stored = {(row["question"], tuple(row["token_ids"])): row["logprobs"] for row in rows_of(recorded)}
    for row in rows_of(folder):
        assert row["weight_version"] == STORED_VERSION
        assert stored[row["question"], tuple(row["token_ids"])] == row["logprobs"]
    assert len(read_json_lines(folder.evaluations_file).records) >= 2
    assert "ratios are computed against their log-probabilities" in folder.log_file.read_text()


def test_without_log_probabilities_the_policy_at_the_start_of_the_step_is_the_anchor(
    runs, recorded, tmp_path
):
    source = text_file(tmp_path / "texts.parquet", recorded)
    folder = runs.train(
        *ONE_UPDATE,
        "rollout=bank",
        f"rollout.source={source}",
        "rollout.rewards=stored",
        "experiment_name=texts",
        EVERY,
    )
    for record in records_of(folder):
        assert record["objective/ratio_min"] == record["objective/ratio_max"] == 1.0
        assert 10.0 <= record["rollout/reward"] <= 13.0
    assert all(math.isnan(value) for row in rows_of(folder) for value in row["logprobs"])
    assert "all of them have no log-probabilities" in folder.log_file.read_text()


def test_gvpo_mixes_live_and_stored_completions_and_compares_with_its_own_policy(runs, recorded):
    folder = runs.train(
        "algorithm=gvpo_offpolicy",
        f"rollout.source={recorded.name}",
        "optimizer.num_minibatches=1",
        "experiment_name=mixed",
        EVERY,
    )
    for record in records_of(folder):
        assert record["objective/ratio_min"] == record["objective/ratio_max"] == 1.0
        assert record["mismatch/kl"] < 1e-6
        assert record["optimizer/num_updates"] == 1
    versions = [row["weight_version"] for row in rows_of(folder)]
    assert versions.count(STORED_VERSION) == len(versions) / 2
    assert {0, 1, 2} <= set(versions)


@pytest.mark.full
def test_a_run_on_stored_rollouts_resumes_bit_for_bit(runs, recorded):
    lines = (
        "algorithm=gvpo_offpolicy",
        f"rollout.source={recorded.name}",
        "checkpoint.every_num_steps=2",
        EVERY,
    )
    whole = runs.train(*lines, "num_steps=4", "experiment_name=bank-whole")
    parts = runs.train(*lines, "num_steps=2", "experiment_name=bank-parts")
    again = runs.resume(parts, "num_steps=4")
    assert metrics_of(again) == metrics_of(whole)
    assert repr(rollouts_of(again)) == repr(rollouts_of(whole))
    assert_same_weights(again, whole, step=4)


def test_a_source_that_cannot_serve_is_said_in_one_line(runs, recorded, tmp_path):
    bank = (*ONE_UPDATE, "rollout=bank", "experiment_name=wrong")
    source = text_file(tmp_path / "texts.parquet", recorded)
    unrewarded = tmp_path / "unrewarded.parquet"
    pq.write_table(pq.read_table(source).drop_columns(["reward"]), unrewarded)
    cases = [
        (
            [f"rollout.source={tmp_path / 'none'}"],
            RunFolderError,
            "is neither a Parquet file nor a run: there is no run",
        ),
        (
            [f"rollout.source={recorded.name}", "dataset.seed=5"],
            DataError,
            "choose the dataset that the completions|none of",
        ),
        ([f"rollout.source={recorded.name}", "rollout.group_size=5"], DataError, "a group needs 5 stored"),
        (
            [f"rollout.source={recorded.name}", "rollout.max_new_tokens=3"],
            DataError,
            "max_new_tokens must be at least 16",
        ),
        ([f"rollout.source={unrewarded}", "rollout.rewards=stored"], DataError, "have no reward"),
    ]
    for lines, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            runs.train(*bank, *lines)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["rollout=bank"], r"rollout\.source is missing"),
        (["rollout=bank", "rollout.source=last"], r"rollout\.source=last .* another run"),
        (
            ["rollout=bank", "rollout.source=x", "rollout.stored_frac=0.3"],
            r"stored_frac must give .*rollout\.group_size=8, got 0\.3; use 0\.125",
        ),
        (
            ["algorithm=gvpo_offpolicy", "rollout.source=x", "algorithm.ratio.weight.anchor=behavior"],
            "implicit_reward_regression requires algorithm.ratio.weight.anchor=proximal",
        ),
        (
            ["rollout=bank", "rollout.source=x", "compute.behavior_logprobs=recompute"],
            "behavior_logprobs=recompute requires the weights that sampled.*anchor=proximal",
        ),
    ],
)
def test_settings_that_cannot_work_with_stored_rollouts_are_refused_before_anything_is_read(lines, message):
    with pytest.raises(ConfigError, match=message):
        compose(lines)


def test_with_stored_anchors_the_kl_to_the_behavior_policy_works_at_the_only_update():
    lines = ["algorithm=rpg_ufkl", "optimizer.num_minibatches=1"]
    with pytest.raises(ConfigError, match="no gradient with one update"):
        compose(lines)
    compose([*lines, "rollout=bank", "rollout.source=x"])
