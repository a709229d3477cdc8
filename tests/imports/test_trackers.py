"""`atrium import` of runs of W&B and MLflow, and of episodes of prime-rl, as their programs wrote them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb

from atrium.base import metrics
from atrium.compare.curve_index import recorded_curves
from atrium.compare.outcomes import read_answers
from atrium.runs.find import find_runs, list_runs
from atrium.runs.reader import read_evaluations
from atrium.runs.sample_files import read_evaluated

FILES = Path(__file__).parent / "files"
WANDB = FILES / "wandb" / "run-fixture.wandb"
REWARDS, ENTROPIES = [0.0, 0.25, 0.5], [1.0, 0.9, 0.8]


def chunk(kind, content):
    return struct.pack("<IHB", zlib.crc32(bytes([kind]) + content), len(content), kind) + content


@pytest.mark.parametrize("source", ["wandb", "mlflow/mlflow.db", "mlflow/mlruns"])
def test_curves_seed_and_settings_of_a_tracked_run_are_imported(source, imported):
    code, printed = imported(FILES / source, "--experiment", "e", "--method", "grpo")
    assert (code, "2 of 2 metrics map to Atrium's names" in printed) == (0, True), printed
    (run,) = list_runs("runs")
    curves = recorded_curves(run).columns
    assert list(curves[metrics.REWARD.name]) == REWARDS
    assert list(curves[metrics.ENTROPY.name]) == pytest.approx(ENTROPIES)
    config = json.loads(run.config_file.read_text())
    assert config["seed"] == 1
    assert config["model"] == {"source": "tiny"}
    assert config["optimizer"] == {"learning_rate": "0.001"}


def test_a_setting_of_a_tracked_run_names_its_method(imported):
    code, printed = imported(WANDB, "--experiment", "e", "--map", "method=algorithm.name")
    assert (code, "method is grpo\n" in printed) == (0, True), printed
    code, printed = imported(WANDB, "--experiment", "f", "--map", "method=nothing")
    assert (code, "unknown setting; use a setting of grpo-1: " in printed) == (2, True)
    code, printed = imported(WANDB, "--experiment", "f", "--map", "score=seed")
    assert (code, "a W&B offline run has only curves" in printed) == (2, True)


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def part(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_a_record_of_several_blocks_is_read_whole(tmp_path, imported):
    values = {b"_step": b"3", b"reward": b"0.5", b"text": b'"' + b"x" * 70_000 + b'"'}
    record = part(2, b"".join(part(1, part(2, name) + part(16, value)) for name, value in values.items()))
    content, room = WANDB.read_bytes()[:7], 32768 - 7 - 7
    while len(record) > room:
        content += chunk(2 if room < 32768 - 7 else 3, record[:room])
        record, room = record[room:], 32768 - 7
    (tmp_path / "run-a.wandb").write_bytes(content + chunk(4, record))
    code, printed = imported("run-a.wandb", "--experiment", "e", "--method", "m")
    assert (code, "was still running" in printed) == (0, True), printed
    (run,) = list_runs("runs")
    assert list(recorded_curves(run).columns[metrics.REWARD.name]) == [0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c[:6] + b"\x01" + c[7:], "is a W&B run file of version 1, expected 0"),
        (lambda c: b"SQLite" + c[6:], "is not a W&B run file"),
        (lambda c: b"", "is not a W&B run file"),
        (lambda c: c[:600] + b"\x00" + c[601:], "is damaged"),
        (lambda c: c[: len(c) - 40], "ends within a record"),
        (lambda c: c[:7] + chunk(1, b"\xff" * 20), "is damaged"),
        (lambda c: c[:7] + chunk(3, b"\x08\x01"), "is damaged"),
    ],
)
def test_a_damaged_file_of_wandb_is_one_line_and_nothing_is_written(change, message, tmp_path, imported):
    (tmp_path / "run-a.wandb").write_bytes(change(WANDB.read_bytes()))
    code, printed = imported("run-a.wandb", "--experiment", "e")
    assert (code, message in printed, printed.count("\n")) == (2, True, 1), printed
    assert not (tmp_path / "runs").exists()


def test_complete_records_of_a_killed_wandb_run_are_read_with_incomplete(tmp_path, imported):
    (tmp_path / "run-a.wandb").write_bytes(WANDB.read_bytes()[:-40])
    code, printed = imported("run-a.wandb", "--experiment", "e", "--incomplete")
    assert (code, "the run was still running" in printed) == (0, True), printed


def test_all_runs_of_a_database_are_imported_and_other_databases_refused(tmp_path, imported):
    shutil.copy(FILES / "mlflow" / "mlflow.db", tmp_path)
    with sqlite3.connect("mlflow.db") as database:
        database.execute("INSERT INTO runs SELECT 'b', 'other', source_type, source_name, entry_point_name, user_id, status, start_time, end_time, source_version, lifecycle_stage, artifact_uri, experiment_id, deleted_time FROM runs")  # noqa: E501  # fmt: skip
        database.execute("INSERT INTO metrics VALUES ('reward', 0.5, 0, 'b', 1, 0)")
    database.close()
    assert imported("mlflow.db", "--experiment", "e", "--method", "m")[0] == 0
    assert sorted(json.loads(run.config_file.read_text())["seed"] for run in list_runs("runs")) == [0, 1]
    with sqlite3.connect("other.db") as database:
        database.execute("CREATE TABLE t (a)")
    database.close()
    code, printed = imported("other.db", "--experiment", "f")
    assert (code, "is not an MLflow database" in printed) == (2, True)
    (tmp_path / "torn.db").write_bytes((tmp_path / "mlflow.db").read_bytes()[:5000])
    code, printed = imported("torn.db", "--experiment", "f")
    assert (code, "is damaged" in printed, printed.count("\n")) == (2, True, 1)


def test_a_deleted_run_of_mlflow_is_left_out(tmp_path, imported):
    shutil.copytree(FILES / "mlflow" / "mlruns", tmp_path / "mlruns")
    meta = next(
        path for path in (tmp_path / "mlruns").rglob("meta.yaml") if (path.parent / "metrics").is_dir()
    )
    meta.write_text(meta.read_text().replace("lifecycle_stage: active", "lifecycle_stage: deleted"))
    code, printed = imported("mlruns", "--experiment", "e", "--method", "m")
    assert (code, "the run was deleted" in printed) == (2, True), printed


def test_episodes_of_prime_rl_give_the_logged_mean(imported):
    code, printed = imported(FILES / "prime_rl", "--experiment", "e", "--method", "grpo")
    assert code == 0, printed
    (run,) = find_runs("runs", ["e"])
    lines = (FILES / "prime_rl" / "metrics.jsonl").read_text().splitlines()
    logged = {entry["step"]: entry for entry in map(json.loads, lines)}
    for evaluation in read_evaluations(run)["sums"]:
        expected = logged[evaluation.step]["eval/sums/all/agent/avg@2"]
        answered = read_answers(run, "sums", evaluation.step).num_correct
        assert sum(answered.values()) / 6 == pytest.approx(expected)
        assert evaluation.results["printed"] == expected
    assert read_answers(run, "training_rollouts", 1).num_samples == 2
    first = read_evaluated(run)["sums"][0]
    assert (first["problem_id"], first["question"], first["gold"]) == ("sums-0", "0+1=", "1")


def test_a_failed_episode_is_incorrect_and_two_trainable_agents_are_refused(tmp_path, imported):
    lines = (FILES / "prime_rl/rollouts/step_10/eval/all/traces.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    rows[0] |= {"ok": False, "traces": []}
    (tmp_path / "traces.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, printed = imported("traces.jsonl", "--experiment", "e")
    assert (code, "method is tiny-grpo" in printed) == (0, True), printed
    (run,) = find_runs("runs", ["e"])
    right = sum(row["traces"][0]["rewards"]["correct"]["score"] for row in rows[1:])
    assert sum(read_answers(run, "sums", 10).num_correct.values()) == right
    rows[1]["traces"] *= 2
    (tmp_path / "traces.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, printed = imported("traces.jsonl", "--experiment", "f")
    assert (code, "row 2: an episode must have one trainable agent, got 2" in printed) == (2, True)


class Run:
    id, name, config = "abc", "grpo-1", {"seed": 1, "algorithm": {"name": "grpo"}}

    def scan_history(self):
        return iter([{"_step": step, "_runtime": 1.0, "train/reward": step / 4} for step in range(3)])


@pytest.mark.parametrize("source", ["wandb:team/project", "wandb:team/project/abc"])
def test_runs_of_a_wandb_server_are_stored_and_imported(source, imported, monkeypatch):
    client = SimpleNamespace(run=lambda name: Run(), runs=lambda name: [Run()])
    monkeypatch.setattr("wandb.Api", lambda: client)
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    code, printed = imported(source, "--experiment", "e", "--map", "method=algorithm.name")
    assert (code, "method is grpo" in printed) == (0, True), printed
    (run,) = list_runs("runs")
    assert list(recorded_curves(run).columns[metrics.REWARD.name]) == REWARDS


def test_wandb_server_import_requires_a_key_and_a_complete_name(imported, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    code, printed = imported("wandb:team/project/abc", "--experiment", "e")
    assert (code, "set WANDB_API_KEY" in printed, printed.count("\n")) == (2, True, 1)
    assert "expected wandb:ENTITY/PROJECT" in imported("wandb:team", "--experiment", "e")[1]

    def refuse():
        raise wandb.errors.CommError("no such project\nmore")

    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setattr("wandb.Api", refuse)
    code, printed = imported("wandb:team/project", "--experiment", "e")
    assert (code, "the runs cannot be downloaded from W&B (no such project); " in printed) == (2, True), (
        printed
    )
    assert not Path("runs").exists()
