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
    assert "not yet measured: gpu_update; give the same command again" in done.stderr


def test_a_program_that_takes_too_long_or_fails_is_a_reason(report, tmp_path):
    log = tmp_path / "log"
    hanging = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert report.records_of(hanging, os.environ, 1.0, log) == ([], "-c took more than 1 s")
    failing = [sys.executable, "-c", "print('{\"n\": 1}', flush=True); raise SystemExit('no memory')"]
    found, reason = report.records_of(failing, os.environ, 600.0, log)
    assert found == [{"n": 1}]
    assert reason == "-c ended with exit code 1: no memory"


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
