"""The figure of an evaluation: what is drawn is what was recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.image import imread

from atrium.compare.figures.pass_at_k import draw_pass_at_k, pass_at_k_figure
from atrium.runs.reader import read_evaluations
from atrium.runs.run_folder import RunFolder

K = 8
RESULTS = {
    "k": K,
    "num_problems": 30,
    "mean_at_k": 0.5,
    "pass_at_k": 0.9,
    "maj_at_k": 0.6,
    "interval_over_problems": [0.4, 0.6],
    "pass_at": {"1": 0.5, "2": 0.7, "8": 0.9},
    "pass_hat": {"1": 0.5, "2": 0.3, "8": 0.1},
    "pass_at_intervals": {str(k): {"over_problems": [0.05, 0.95], "sampling": None} for k in (1, 2, 8)},
    "pass_hat_intervals": {str(k): {"over_problems": [0.05, 0.95], "sampling": None} for k in (1, 2, 8)},
    "curve": {
        "mean_at_k": [0.5] * K,
        "pass_at_k": np.linspace(0.5, 0.9, K).tolist(),
        "pass_hat_k": np.linspace(0.5, 0.1, K).tolist(),
    },
}


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "runs", "evaluations", "tiny", 0)


def record(folder, benchmark="aime24", step=0, **changes):
    line = {"step": step, "benchmark": benchmark, "results": RESULTS | changes}
    with folder.evaluations_file.open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_the_latest_evaluation_of_each_benchmark_becomes_a_picture_and_a_drawing(folder):
    record(folder)
    record(folder, step=7)
    record(folder, "math$500")
    paths = draw_pass_at_k(folder)
    names = ["pass_at_k-aime24-step-000007", "pass_at_k-math$500-step-000000"]
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    assert imread(paths[0])[..., :3].std() > 0.05
    assert "<svg" in paths[1].read_text()


def test_every_k_is_drawn_as_recorded(folder):
    record(folder)
    figure = pass_at_k_figure(read_evaluations(folder)["aime24"][-1])
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    for label, curve in (
        ("Pass@k", "pass_at_k"),
        ("Pass^k", "pass_hat_k"),
        ("Mean@k of the first k samples", "mean_at_k"),
    ):
        assert np.allclose(lines[label].get_ydata(), 100 * np.array(RESULTS["curve"][curve]))
        assert list(lines[label].get_xdata()) == list(range(1, K + 1))
    assert list(lines["Maj@8"].get_ydata()) == [60.0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4", "8"]
    assert axes.get_title("left") == "aime24, 30 problems, 8 samples each"


def test_one_sample_per_problem_and_older_records_have_no_curve(folder):
    record(folder, "one", k=1, curve={"mean_at_k": [0.5], "pass_at_k": [0.5], "pass_hat_k": [0.5]})
    record(folder, "old", curve=None)
    assert draw_pass_at_k(folder) == ()


def test_scores_without_spread_are_drawn_without_a_warning(folder):
    flat = dict.fromkeys(RESULTS["curve"], [0.0] * K)
    nothing = {key: dict.fromkeys(RESULTS[key], 0.0) for key in ("pass_at", "pass_hat")}
    record(folder, curve=flat, mean_at_k=0.0, interval_over_problems=[0.0, 0.1], **nothing)
    assert len(draw_pass_at_k(folder)) == 2
