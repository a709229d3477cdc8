"""The command line against a Hub: a server on this machine, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

REPOSITORY = "some-lab/sums"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def train(hub, tmp_path):
    """Trains for two steps on the repository's problems and is judged on its other file."""
    rows = [{"problem": f"{a}+{b}=", "answer": f"{a + b}.0"} for a in range(1, 10) for b in range(1, 8)]
    hub.add(REPOSITORY, "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows), is_large=True)
    exam = [{"question": f"{a}-1=", "answer": [a - 1]} for a in range(1, 6)]
    hub.add(REPOSITORY, "test.jsonl", "".join(json.dumps(row) + "\n" for row in exam))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.address,
        "OMP_NUM_THREADS": "1",
    }

    def run(*overrides):
        command = [
            *(sys.executable, "-m", "atrium", "train", "debug=tiny_steps", "num_steps=2"),
            *("dataset=file", f"dataset.source={REPOSITORY}", "dataset.files=[train.jsonl]"),
            *("dataset.num_train=40", "dataset.num_test=0", "dataset.expected_num_rows=63"),
            *("benchmark=file", f"benchmark.source={REPOSITORY}", "benchmark.files=[test.jsonl]"),
            *("benchmark.name=exam", f"runs_dir={tmp_path / 'runs'}", "tracking.figures=false"),
        ]
        return subprocess.run(
            [*command, *overrides], capture_output=True, text=True, timeout=240, env=environment, cwd=tmp_path
        )

    return run


def test_a_run_trains_on_a_hub_dataset_and_records_its_commit(hub, train, tmp_path):
    hub.drops["train.jsonl"] = 1
    done = train()
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs" / "debug").iterdir()
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["data"]["dataset_revision"] == COMMIT
    assert provenance["origins"]["benchmarks"]["exam"]["revision"] == COMMIT
    assert set(json.loads((run / "summary.json").read_text())["evaluations"]) == {"file-validation", "exam"}
    assert (tmp_path / "runs" / ".cache" / "huggingface").is_dir()
    assert "fetching train.jsonl of some-lab/sums" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset.expected_num_rows=64"], "must have 64 rows, got 63"),
        (["dataset.files=[training.jsonl]"], "the Hub has no such file"),
        pytest.param(
            ["dataset.fields.question=[prompt]"],
            "no row has a field for the question",
            marks=pytest.mark.release,
        ),
        (["dataset.source=nowhere.jsonl"], "dataset.source=nowhere.jsonl: there is no such file"),
    ],
)
def test_wrong_data_are_one_line_with_exit_code_2(train, overrides, message):
    done = train(*overrides)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr
