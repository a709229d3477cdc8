"""What a run leaves behind: every file, every name, and nothing that should not be there."""

from __future__ import annotations

import json
import math

import pyarrow.parquet as pq
import pytest

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import CATALOGUE
from atrium.config.compose import from_json
from atrium.config.dates import dated
from atrium.models.policy import load_policy
from atrium.runs.status import RunState, read_status
from atrium.train.checkpoint.checkpoint import latest_checkpoint

BENCHMARKS = {"arithmetic-validation": (0, 2, 3), "arithmetic-test": (0, 3)}
SUMMARY_POINT = {
    "step",
    "k",
    "mean_at_k",
    "pass_at_k",
    "interval_over_problems",
    "interval_sampling",
    "num_problems",
    "maj_at_k",
    "completion_length",
    "truncated_frac",
}
SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture
def folder(runs, monkeypatch):
    """One run's record, with a secret in the environment and figures drawn."""
    made = runs.runs_dir / "record"
    if not made.is_dir():
        monkeypatch.setenv("HF_TOKEN", SECRET)
        runs.train("algorithm=rpg_ufkl", "experiment_name=record", "tracking.figures=true")
    return runs.only("record")


def _records(folder):
    return read_json_lines(folder.metrics_file).records


def test_every_file_of_the_record_is_there(folder):
    files = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    policy = {
        f"checkpoints/step-{step:06d}/policy/{name}"
        for step in (2, 3)
        for name in (
            "atrium.json",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        )
    }
    assert files >= policy | {
        "config.json",
        "overrides.yaml",
        "provenance.json",
        "metrics.jsonl",
        "evaluations.jsonl",
        "log.txt",
        "status.json",
        "summary.json",
        "figures/curves.png",
        "checkpoints/step-000003/state.json",
        "checkpoints/step-000003/optimizer.safetensors",
        *(f"rollouts/step-{step:06d}.parquet" for step in (1, 2, 3)),
        *(
            f"evaluations/{name}/step-{step:06d}.parquet"
            for name, steps in BENCHMARKS.items()
            for step in steps
        ),
    }
    assert not [name for name in files if name.endswith((".pt", ".bin", ".pkl", ".partial", ".pickle"))]
    assert not [name for name in files if ".tmp-" in name]


def test_the_configuration_is_the_one_that_ran_and_resumes_nothing(folder, runs):
    config = from_json(folder.config_file.read_text())
    wanted = runs.config("algorithm=rpg_ufkl", "experiment_name=record", "tracking.figures=true")
    assert config == dated(wanted, read_status(folder.status_file).started)
    assert config.resume is None
    assert "algorithm=rpg_ufkl" in folder.overrides_file.read_text()


def test_metrics_are_finite_declared_and_of_every_step(folder):
    records = _records(folder)
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        values = {name: value for name, value in record.items() if name not in ("step", "time")}
        assert set(values) <= set(CATALOGUE)
        assert all(math.isfinite(value) for value in values.values()), values
    always = set.intersection(*(set(record) for record in records))
    assert always >= {
        "rollout/reward",
        "rollout/correct_frac",
        "rollout/no_answer_frac",
        "rollout/timed_out_frac",
        "rollout/completion_length",
        "rollout/completion_length_max",
        "rollout/truncated_frac",
        "rollout/no_signal_frac",
        "rollout/tokens_per_s",
        "mismatch/logprob_mean",
        "objective/entropy",
        "objective/clip_high_frac",
        "objective/clip_low_frac",
        "objective/clip_runaway_frac",
        "objective/kl_k1",
        "objective/kl_k2",
        "objective/kl_k3",
        "objective/ratio_max",
        "objective/ratio_min",
        "objective/effective_sample_frac",
        "optimizer/grad_norm",
        "optimizer/learning_rate",
        "time/rollout_s",
        "time/update_s",
        "time/step_s",
    }


def test_shares_lie_between_zero_and_one_and_verdicts_add_up(folder):
    for record in _records(folder):
        shares = {name: value for name, value in record.items() if name.endswith("_frac")}
        assert all(0.0 <= value <= 1.0 for value in shares.values()), shares
        verdicts = ("correct", "incorrect", "no_answer", "timed_out", "crashed")
        assert sum(record[f"rollout/{verdict}_frac"] for verdict in verdicts) == pytest.approx(1.0)
        assert record["mismatch/logprob_max"] < 1e-4


def test_evaluations_come_before_during_and_after(folder):
    found = {}
    for record in read_json_lines(folder.evaluations_file).records:
        found.setdefault(record["benchmark"], []).append(record["step"])
    assert found == {name: list(steps) for name, steps in BENCHMARKS.items()}
    table = pq.read_table(folder.evaluation_path("arithmetic-test", 3))
    assert table.num_rows == 4 * 2


def test_rollouts_hold_what_the_objective_saw(folder):
    rows = pq.read_table(folder.rollouts_path(2)).to_pylist()
    assert len(rows) == 16
    for row in rows:
        lists = [row[name] for name in ("token_ids", "logprobs", "advantage", "ratio", "entropy", "clipped")]
        assert {len(values) for values in lists} == {row["num_tokens"]}
        assert row["reward"] in (0.0, 1.0)
        assert row["weight_version"] == 2
        assert all(entropy > 0.0 for entropy in row["entropy"])


def test_the_summary_has_exactly_its_keys(folder):
    summary = json.loads(folder.summary_file.read_text())
    assert set(summary) == {"evaluations", "num_steps", "num_tokens", "wall_s", "status", "findings"}
    assert (summary["num_steps"], summary["status"]) == (3, "finished")
    assert summary["num_tokens"] == sum(record["rollout/num_tokens"] for record in _records(folder))
    assert set(summary["evaluations"]) == set(BENCHMARKS)
    for points in summary["evaluations"].values():
        assert set(points) == {"first", "best", "last"}
        assert set(points["first"]) == set(points["last"]) == SUMMARY_POINT
        assert set(points["best"]) == SUMMARY_POINT | {"selected_on"}
        assert (points["first"]["step"], points["last"]["step"]) == (0, 3)


def test_the_status_says_that_it_finished(folder):
    status = read_status(folder.status_file)
    assert (status.state, status.step, status.num_steps, status.error) == (RunState.FINISHED, 3, 3, None)


def test_provenance_names_code_packages_machine_and_data(folder):
    provenance = json.loads(folder.provenance_file.read_text())
    assert provenance["code"]["commit"] is None or len(provenance["code"]["commit"]) == 40
    assert {"torch", "transformers", "hydra-core"} <= set(provenance["packages"])
    assert provenance["num_threads"] >= 1
    data = provenance["data"]
    assert len(data["dataset_content_hash"]) == 64
    assert set(data["benchmark_content_hashes"]) == set(BENCHMARKS)
    assert len(data["prompt_template_hash"]) == 64


def test_no_secret_of_the_environment_is_written_anywhere(folder):
    for path in folder.path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_the_last_checkpoint_is_a_policy_and_counts_what_happened(folder):
    checkpoint = latest_checkpoint(folder.checkpoints_dir)
    records = _records(folder)
    state = checkpoint.state
    assert (state.step, state.cursor) == (3, 12)
    assert state.weight_version == sum(record["optimizer/num_updates"] for record in records) == 6
    assert state.num_tokens == sum(record["rollout/num_tokens"] for record in records)
    assert state.wall_s > 0.0
    assert load_policy(checkpoint.policy, dtype="auto", device="cpu").num_parameters == 13_312


def test_the_best_checkpoint_that_is_named_exists(folder):
    best = folder.best_checkpoint_step()
    assert best is None or best in folder.checkpoint_steps()
