"""A pretrained language model through the whole of a run, as `atrium train experiment=smollm2` has it."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from tests.pretrained import pretrained_folder

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import GRAD_NORM, MISMATCH_MAX, TRUNCATED_FRAC
from atrium.cli import main
from atrium.runs.run_folder import RunFolder

SMALL = (
    "num_steps=2",
    "rollout.num_prompts=4",
    "dataset.num_validation=2",
    "dataset.num_test=2",
    "evaluation.num_samples=1",
    "evaluation.every_num_steps=null",
    "checkpoint.keep_best=false",
    "tracking=none",
)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_pretrained_model_trains_on_the_prompt_of_its_experiment(tmp_path):
    local = ["model=hub", f"model.source={pretrained_folder()}", f"runs_dir={tmp_path}"]
    assert main(["train", "experiment=smollm2", *local, *SMALL]) == 0
    [path] = tmp_path.glob("smollm2/*")
    folder = RunFolder(path)
    steps = list(read_json_lines(folder.metrics_file).records)
    assert len(steps) == 2
    for step in steps:
        assert 0.0 < step[GRAD_NORM.name] < 100.0
        assert step[MISMATCH_MAX.name] < 1e-2
        # Without the string that ends an answer nearly all would be cut off.
        assert step[TRUNCATED_FRAC.name] < 0.5
    rows = pq.read_table(folder.rollouts_path(1)).to_pylist()
    assert len(rows) == 32
    answers = [row for row in rows if "\\boxed{" in row["text"]]
    assert len(answers) > 16, "worked examples show the form of an answer"
    assert not any("\n" in row["text"][:-1] for row in rows), "nothing follows the string that ends an answer"
    assert any(row["text"].endswith("\n") for row in answers)
