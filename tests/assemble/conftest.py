"""Whole runs at debug size, in this process: one runs directory, one warm-up and one grader for all tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from atrium.assemble.training import run_training
from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import is_repeatable
from atrium.config.compose import compose, from_json
from atrium.config.resume import resumed
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier
from atrium.runs import provenance
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter

SMALL = (
    "debug=tiny_steps",
    "reward=random",
    "rollout.max_new_tokens=16",
    "dataset.num_validation=4",
    "dataset.num_test=4",
    "tracking.figures=false",
    "tracking.progress=off",
)


class Killed(BaseException):
    """The process ends here, as by SIGKILL: nothing in between may notice."""


@dataclass(frozen=True)
class Runs:
    """Trains at debug size below one folder, so that the warm-up is made once."""

    runs_dir: Path
    grader: GraderPool

    def config(self, *overrides):
        return compose([*SMALL, f"runs_dir={self.runs_dir}", *overrides])

    def train(self, *overrides) -> RunFolder:
        lines = [*SMALL, f"runs_dir={self.runs_dir}", *overrides]
        return RunFolder(run_training(compose(lines), self.grader, lines))

    def killed_after(self, step, *overrides) -> RunFolder:
        """A run whose process ended once the metrics of the step after `step` were recorded."""
        record = RunFolderWriter.step

        def log_and_die(tracker, number, metrics):
            record(tracker, number, metrics)
            if number == step + 1:
                raise Killed

        config = self.config(*overrides)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RunFolderWriter, "step", log_and_die)
            with pytest.raises(Killed):
                self.train(*overrides)
        return self.only(config.experiment_name)

    def resume(self, folder, *overrides) -> RunFolder:
        stored = from_json(folder.config_file.read_text())
        config = resumed(stored, folder.path, list(overrides))
        return RunFolder(run_training(config, self.grader, overrides))

    def only(self, experiment) -> RunFolder:
        """The one run of an experiment."""
        (path,) = (self.runs_dir / experiment).iterdir()
        return RunFolder(path)


@pytest.fixture(scope="session")
def _pool():
    with GraderPool(MathVerifier(num_workers=1, timeout_s=60.0, memory_limit_mb=1024)) as pool:
        yield pool


@pytest.fixture(scope="session")
def _runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def _package_versions():
    return cache(provenance.package_versions)


@pytest.fixture
def runs(_runs_dir, _pool, _package_versions, monkeypatch):
    """Runs that share what takes most of their time: the grader's processes, and what is installed."""
    monkeypatch.setattr(provenance, "package_versions", _package_versions)
    return Runs(_runs_dir, _pool)


def metrics_of(folder):
    """What two equal runs agree on of `metrics.jsonl`, by step."""
    return {
        record["step"]: {name: value for name, value in record.items() if is_repeatable(name)} | {"time": 0}
        for record in read_json_lines(folder.metrics_file).records
    }


def evaluations_of(folder):
    """All evaluations without their times, and every evaluated sample."""
    records = [record | {"time": 0} for record in read_json_lines(folder.evaluations_file).records]
    samples = {
        str(path.relative_to(folder.evaluations_dir)): pq.read_table(path).to_pylist()
        for path in sorted(folder.evaluations_dir.rglob("*.parquet"))
    }
    return records, samples


def rollouts_of(folder):
    """Every recorded rollout with its traces."""
    return {path.name: pq.read_table(path).to_pylist() for path in sorted(folder.rollouts_dir.iterdir())}


def assert_same_weights(folder, other, step):
    """The checkpoints of a step hold the same weights, optimiser state and training state, bit for bit."""
    ours, theirs = folder.checkpoint_path(step), other.checkpoint_path(step)
    for name in ("policy/model.safetensors", "optimizer.safetensors"):
        mine, yours = load_file(ours / name), load_file(theirs / name)
        assert mine.keys() == yours.keys()
        for key, value in mine.items():
            assert value.equal(yours[key]), f"{name}: {key}"
    assert (ours / "reference.safetensors").exists() == (theirs / "reference.safetensors").exists()
    states = [
        json.loads((path / "state.json").read_text())["state"] | {"wall_s": 0} for path in (ours, theirs)
    ]
    assert states[0] == states[1]


@pytest.fixture(scope="session")
def same_record():
    """Asserts that two runs agree bit for bit in all that is not a time."""

    def check(folder, other, *, step):
        assert metrics_of(folder) == metrics_of(other)
        assert evaluations_of(folder) == evaluations_of(other)
        assert repr(rollouts_of(folder)) == repr(rollouts_of(other))  # a NaN equals itself as text
        assert_same_weights(folder, other, step)

    return check
