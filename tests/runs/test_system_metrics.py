"""The machine's state, recorded beside a run: values, gaps, resuming, and GPUs by a stand-in of NVML."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace

from atrium.base.metrics import SYSTEM
from atrium.runs.layout import RunLayout
from atrium.runs.status import RunState
from atrium.runs.system_metrics import Machine, SystemMetrics


class NVMLError(Exception):
    pass


def nvml_of(*uuids):
    """A stand-in of `pynvml` for GPUs of these UUIDs; the temperature cannot be read."""

    def temperature(_handle, _sensor):
        raise NVMLError

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: uuids[index],
        nvmlDeviceGetUtilizationRates=lambda index: SimpleNamespace(gpu=50 + index),
        nvmlDeviceGetMemoryInfo=lambda _index: SimpleNamespace(used=3_000_000),
        nvmlDeviceGetPowerUsage=lambda _index: 250_000,
        nvmlDeviceGetTemperature=temperature,
    )


def rows_of(run):
    return [json.loads(line) for line in run.system_file.read_text().split("\n")[:-1]]


def record(run, gauges, *, num_rows, step=0):
    """Record until there are so many rows."""
    system = SystemMetrics(run, gauges, every_s=0.01, first_after_s=0.01)
    system.begin(step=step, num_steps=9)
    system.step(step + 1, {})
    deadline = time.monotonic() + 20
    while not run.system_file.exists() or len(rows_of(run)) < num_rows:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    system.end(RunState.FINISHED)


def test_rows_hold_the_step_the_machine_and_gauges_that_can_be_read(tmp_path):
    run = RunLayout(tmp_path)
    record(run, {"system/engine_queue": lambda: 7, "broken": lambda: 1 / 0}, num_rows=2, step=4)
    last = rows_of(run)[-1]
    assert last.keys() == {"step", "time", *(one.name for one in SYSTEM)}
    assert (last["step"], last["system/engine_queue"]) == (5, 7.0)
    assert 0 <= last["system/cpu_frac"] <= 1
    assert 0 < last["system/memory_frac"] < 1
    assert last["system/memory_mb"] > 10
    assert not [one for one in threading.enumerate() if one.name == "system-metrics"]


def test_resumed_run_appends_after_an_incomplete_last_line(tmp_path):
    run = RunLayout(tmp_path)
    run.system_file.write_text('{"step":1,"time":1.0}\n{"step":2,"ti')
    record(run, {}, num_rows=2, step=2)
    assert [row["step"] for row in rows_of(run)][:2] == [1, 3]


def test_missing_folder_leaves_a_gap_without_an_error(tmp_path):
    system = SystemMetrics(RunLayout(tmp_path / "gone"), {}, every_s=0.001, first_after_s=0.001)
    time.sleep(0.02)
    system.end(RunState.FAILED, "an error")
    assert not (tmp_path / "gone").exists()


def test_busy_process_uses_about_one_core(tmp_path):
    machine = Machine(RunLayout(tmp_path))
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert 0 < machine.values()["system/cpu_cores"] < 3


def test_gpus_that_the_process_may_use_are_recorded_without_values_that_fail(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml_of("GPU-a", "GPU-b", "GPU-c"))
    for visible in ("1", "GPU-b", "1,"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = Machine(RunLayout(tmp_path)).values()
        assert {name: value for name, value in found.items() if "gpu" in name} == {
            "system/gpu1_frac": 0.51,
            "system/gpu1_memory_mb": 3.0,
            "system/gpu1_power_w": 250.0,
        }


def test_machine_without_nvml_records_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not [name for name in Machine(RunLayout(tmp_path)).values() if "gpu" in name]
