"""The trace of one step: written for the chosen step only, readable, and summed up in words."""

from __future__ import annotations

import gzip
import json

import torch

from atrium.train.guard.profile import StepProfiler


def _work():
    left = torch.randn(64, 64)
    return sum(float((left @ left).relu().sum()) for _ in range(20))


def test_the_chosen_step_is_traced_and_its_operations_are_named(tmp_path):
    messages = []
    profiler = StepProfiler(step=2, folder=tmp_path / "profile", log=messages.append)
    with profiler.watch(1):
        _work()
    assert not (tmp_path / "profile").exists()
    with profiler.watch(2):
        _work()
    trace = json.loads(gzip.decompress((tmp_path / "profile" / "step-000002.json.gz").read_bytes()))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("aten::mm") == 20
    assert "aten::mm" in (tmp_path / "profile" / "step-000002.txt").read_text()
    found = json.loads((tmp_path / "profile" / "step-000002.operations.json").read_text())
    _, seconds, _ = found["operations"][0]
    assert 0.0 < seconds <= found["seconds"]
    assert ["aten::mm", 20] in [[name, calls] for name, _, calls in found["operations"]]
    assert "ui.perfetto.dev" in messages[0]
    assert any("aten::mm" in message for message in messages[1:])


def test_a_folder_that_cannot_be_written_is_said_and_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    messages = []
    with StepProfiler(step=1, folder=tmp_path / "file" / "profile", log=messages.append).watch(1):
        _work()
    assert len(messages) == 1
    assert "could not be written" in messages[0]
