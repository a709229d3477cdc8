"""`make gpu-report` in small on a CPU: it keeps its time, goes on where it stopped, says what it lacks."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield importlib.import_module("gpu_report")
    for name in ("gpu_report", "suite", "tables", "record", "pairs"):
        sys.modules.pop(name, None)


@pytest.fixture
def called(report, tmp_path):
    """Run the report in a Python in which the packages that it does not need cannot be imported."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in report.UNUSED:
        (blocked / f"{name}.py").write_text(f'raise ImportError("{name} is not to be imported")')

    def call(*arguments):
        path = os.pathsep.join([str(blocked), str(REPOSITORY / "platform")])
        command = [
            sys.executable,
            BENCHMARKS / "gpu_report.py",
            "--device",
            "cpu",
            "--work",
            tmp_path / "work",
        ]
        done = subprocess.run(
            [*map(str, command), "--minutes", "60", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done, {path.stem: path for path in (tmp_path / "work" / "results").glob("*.json")}

    return call


def test_all_measurements_take_at_most_28_minutes_and_a_call_has_room_for_each(report):
    limits = [measurement.limit_s for measurement in report.MEASUREMENTS.values()]
    assert sum(limits) <= 28 * 60
    assert max(limits) <= 9 * 60


@pytest.mark.full
def test_what_is_measured_is_not_measured_again_and_what_could_not_be_is_said(called, report):
    only = ("--only", "loss_stage_cuda", "gpu_rollout")
    first, results = called(*only)
    assert set(results) == {"loss_stage_cuda", "gpu_rollout"}
    measured = json.loads(results["loss_stage_cuda"].read_text(encoding="utf-8"))
    assert (measured["failed"], measured["size"]) == (None, "small")
    assert {one["arm"] for one in measured["records"]} == {"bare", "plain", "torch", "atrium"}
    assert json.loads(results["gpu_rollout"].read_text(encoding="utf-8"))["failed"] == "vllm is not installed"
    for text in ("vllm is not installed", *report.LEFT_OUT):
        assert text in first.stdout
    assert "all is done" in first.stderr
    before = {name: path.stat().st_mtime_ns for name, path in results.items()}
    again, results = called(*only)
    assert {name: path.stat().st_mtime_ns for name, path in results.items()} == before
    assert report.tables.TITLES["loss_stage_cuda"] not in again.stderr


def test_a_call_begins_nothing_that_it_has_no_time_for(called):
    done, results = called("--minutes", "1", "--only", "gpu_update")
    assert results == {}
    assert "not yet measured: gpu_update; run the same command again" in done.stderr


def test_a_program_that_takes_too_long_or_fails_is_a_reason(report, tmp_path):
    log = tmp_path / "log"
    hanging = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert report.records_of(hanging, os.environ, 1.0, log) == ([], "-c took more than 1 s")
    failing = [sys.executable, "-c", "print('{\"n\": 1}', flush=True); raise SystemExit('no memory')"]
    found, reason = report.records_of(failing, os.environ, 600.0, log)
    assert found == [{"n": 1}]
    assert reason == "-c ended with exit code 1: no memory"


def test_what_took_too_long_is_measured_again_after_everything_else(report, tmp_path, monkeypatch):
    def result(failed):
        return {"failed": failed}

    assert not report.is_done(None)
    assert report.is_done(result("vllm is not installed"))
    found = {
        "gpu_correctness": result("a.py took more than 9 s"),
        "gpu_train": None,
        "gpu_update": result(None),
    }
    made = []
    monkeypatch.setattr(report.tables, "read_result", lambda folder, name: found[name])
    monkeypatch.setattr(report, "measure", lambda name, args, environment: made.append(name))
    monkeypatch.setattr(report, "conclude", lambda args, left: None)
    monkeypatch.setattr(
        sys, "argv", ["gpu_report.py", "--device", "cpu", "--work", str(tmp_path), "--only", *found]
    )
    report.main()
    assert made == ["gpu_train", "gpu_correctness"]


def test_a_first_call_has_time_for_the_tests_a_run_and_the_updates(report):
    first = list(report.MEASUREMENTS)[:4]
    assert first == ["gpu_correctness", "gpu_train", "gpu_mismatch", "gpu_update"]
    assert sum(report.MEASUREMENTS[name].limit_s for name in first) <= 9 * 60


def test_a_server_that_is_too_old_is_a_reason_for_what_needs_one_alone(report, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: name)
    monkeypatch.setattr("atrium.engines.vllm_environment.installed_version", {"vllm": "0.26.0"}.get)
    assert report.lacking("vllm") is None
    assert report.lacking("server").startswith("rollout.placement=server requires vllm")
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert report.lacking("server") == "vllm is not installed"
    assert report.lacking(None) is None


def test_archives_among_the_wheels_are_named_with_the_command_that_builds_them(report, tmp_path):
    (tmp_path / "antlr4-python3-runtime-4.9.3.tar.gz").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"1 of the packages .* pip wheel --no-deps .*4\.9\.3\.tar\.gz"):
        report.with_wheels(tmp_path, tmp_path)


def test_each_test_of_a_file_is_a_record_of_its_own(report, tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu_tests.py"), "test_packed_cuda.py", "--device", "cpu"]
    found, reason = report.records_of(command, os.environ, 300.0, tmp_path / "log")
    assert reason is None
    assert {one["outcome"] for one in found} == {"skipped"}
    assert len({one["test"] for one in found}) == len(found) > 1
    (row,) = report.tables.rows_of({"benchmark": "gpu_correctness", "records": found})
    assert row.case == "test_packed_cuda.py"
    assert row.measured == f"0 passed; skipped: {found[0]['reason']}"


def test_packages_that_lack_are_named(report, monkeypatch):
    monkeypatch.setattr("atrium.assemble.doctor.installed_version", lambda name: "0.0.1")
    lacking = [reason.partition(" ")[0] for reason in report.missing_packages()]
    assert {"torch", "transformers", "hydra-core", "pytest"} <= set(lacking)
    assert not report.UNUSED & set(lacking)


def test_wheels_are_unpacked_once_into_a_folder_of_their_own(report, tmp_path):
    with pytest.raises(SystemExit, match="there are no wheels"):
        report.with_wheels(tmp_path, tmp_path)
    info = "carried-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "carried.py,,\n")
    site = report.with_wheels(tmp_path, tmp_path)
    assert (site / "carried.py").is_file()
    made = site.stat().st_mtime_ns
    assert report.with_wheels(tmp_path, tmp_path) == site
    assert site.stat().st_mtime_ns == made


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_whole_report_runs_in_small(called, report):
    _, results = called()
    assert set(results) == set(report.MEASUREMENTS)
    for name, path in results.items():
        result = json.loads(path.read_text(encoding="utf-8"))
        assert report.tables.rows_of(result)
        if report.MEASUREMENTS[name].needs is None and name != "gpu_step":  # TRL is not here
            assert result["failed"] is None, result["failed"]
