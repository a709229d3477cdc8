"""The health of a run as tables: courses with the limits of the rules, and the machine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atrium.document.document import Trend
from atrium.runs.health import Limit, health_tables, limits_of
from atrium.runs.layout import RunLayout

COLUMNS = {
    "rollout/reward": np.linspace(0.2, 0.6, 200),
    "rollout/completion_length": np.full(200, 10.0),
    "rollout/truncated_frac": np.full(200, 0.1),
    "objective/entropy": np.linspace(1.0, 0.5, 200),
}


def test_health_names_the_value_at_which_each_rule_applies(tmp_path):
    [health] = health_tables(RunLayout(tmp_path), COLUMNS)
    assert [column.title for column in health.columns] == ["curve", "first", "course", "last", "alarm"]
    rows = {row.cells[0]: row.cells[1:] for row in health.rows}
    assert rows["truncated, %"][-1] == "above 30.0"
    assert rows["completion length, tokens"][-1] == "above 20"
    assert rows["entropy, nats"][-1] == "below 0.005", "0.05 nats of a completion of ten tokens"
    assert rows["reward"][-1] == "below 0.202", "the mean of its first three steps"
    course = rows["truncated, %"][1]
    assert isinstance(course, Trend)
    assert (len(course.values), course.limit) == (80, 0.3)


def test_limits_that_depend_on_the_start_are_unknown_without_it():
    assert "rollout/reward" not in limits_of({})
    assert limits_of({"rollout/reward": np.array([np.nan, 0.5])})["rollout/reward"] == Limit(0.5, True)


def test_machine_shows_all_sessions_and_every_gpu_that_was_recorded(tmp_path):
    rows = [
        {"step": 0, "time": 1.0, "system/cpu_frac": 0.5},
        {"step": 9, "time": 11.0, "system/cpu_frac": 0.75, "system/gpu1_power_w": 250, "system/gpu0_frac": 1},
    ]
    (tmp_path / "system.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"torn')
    [machine] = health_tables(RunLayout(tmp_path), {})
    shown = {row.cells[0]: (row.cells[1].value, row.cells[3].value) for row in machine.rows}
    assert shown == {"cpu, %": (0.5, 0.75), "gpu0, %": (1.0, 1.0), "gpu1 power, W": (250.0, 250.0)}


@pytest.mark.parametrize("content", [None, "", "[1]\n\x00\n"])
def test_runs_without_readable_rows_have_no_machine_table(tmp_path, content):
    if content is not None:
        (tmp_path / "system.jsonl").write_text(content)
    assert health_tables(RunLayout(tmp_path), {}) == ()
