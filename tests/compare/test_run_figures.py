"""The figures of a run and of an evaluation: what is drawn is what was recorded."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from atrium.assemble.pictures import draw_evaluation, draw_run
from atrium.base.errors import RunFolderError
from atrium.compare.curves import moving_mean
from atrium.compare.run_figures import evaluation_figure, run_pictures
from atrium.runs.reader import read_evaluations, read_metrics
from atrium.runs.run_folder import RunFolder
from atrium.views.figures.sheet import sheet

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
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))  # drawing sets it for this process where it is not set
    return RunFolder.create(tmp_path / "runs", "quickstart", "atr", 0)


def write_metrics(folder, num_steps):
    rng = np.random.default_rng(0)
    with folder.metrics_file.open("w") as file:
        for step in range(1, num_steps + 1):
            values = {
                "rollout/reward": 1 - 0.8 * np.exp(-step / 20) + 0.02 * rng.normal(),
                "objective/entropy": 0.3 * np.exp(-step / 20),
                "rollout/completion_length": 28 - 18 * np.exp(-step / 10),
                "objective/clip_high_frac": 0.001 * rng.random(),
                "objective/clip_low_frac": 0.01 * rng.random(),
            }
            file.write(json.dumps({"step": step, "time": float(step), **values}) + "\n")


def write_evaluations(folder, steps, benchmark="validation", **changes):
    with folder.evaluations_file.open("a") as file:
        for step in steps:
            mean = 0.2 + 0.6 * step / max(steps)
            results = {
                "k": 8,
                "mean_at_k": mean,
                "pass_at_k": min(mean + 0.3, 1.0),
                "interval_over_problems": [mean - 0.05, mean + 0.05],
                **changes,
            }
            file.write(json.dumps({"step": step, "benchmark": benchmark, "results": results}) + "\n")


def combined(folder):
    """The drawing of all panels."""
    whole = run_pictures(folder)[0]
    return sheet(whole.figures, inches=12.0, title=whole.title, num_columns=3)


def render(folder):
    """Draw the combined figure coarsely, so that whatever drawing warns of is warned of."""
    figure = combined(folder)
    figure.set_dpi(30)
    figure.canvas.draw()
    return figure


def texts(figure):
    """All text of a figure, as it was given."""
    found = [figure.get_suptitle()]
    for axes in figure.axes:
        found += [*axes.get_title("left").splitlines(), axes.get_xlabel(), axes.get_ylabel()]
        found += [text.get_text() for text in axes.texts]
        found += [text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else []
    return found


def test_a_run_gets_one_figure_per_quantity_and_one_of_all(folder):
    folder.write_config({"seed": 3, "algorithm": {"name": "atr"}, "divergence": {"kind": "kl3"}})
    write_metrics(folder, 80)
    write_evaluations(folder, [0, 40, 80])
    write_evaluations(folder, [0, 80], "test")
    draw_run(folder)
    names = ["curves", *(figure.key for figure in run_pictures(folder)[0].figures)]
    paths = [folder.figures_dir / f"{name}.png" for name in names]
    assert set(folder.figures_dir.iterdir()) == set(paths)
    for path in paths:
        height, width, _ = imread(path).shape
        assert width >= 900
        assert height >= 400
        assert imread(path)[..., :3].std() > 0.05  # something is drawn
    assert imread(paths[0]).shape[1] >= 1600


def test_titles_units_and_legends_are_there(folder):
    folder.write_config({"seed": 3, "algorithm": {"name": "atr"}, "divergence": {"kind": "kl3"}})
    write_metrics(folder, 80)
    write_evaluations(folder, [0, 40, 80])
    write_evaluations(folder, [0, 80], "test")
    found = texts(combined(folder))
    for text in (
        "Training with atr, divergence kl3, seed 3, experiment quickstart",
        "Held-out problems: Mean@8 and Pass@8",
        "Reward",
        "Policy entropy",
        "nats per token",
        "Completion length",
        "tokens",
        "share of tokens, %",
        "high side (A > 0)",
        "low side (A < 0)",
        "test, Mean@8 with 95 % interval over problems",
        "test, Pass@8",
        "validation, Mean@8 with 95 % interval over problems",
        "validation, Pass@8",
    ):
        assert text in found
    assert found.count("training step") == 5
    assert "not recorded" not in found


def test_the_figure_shows_the_recorded_values(folder):
    write_metrics(folder, 10)
    write_evaluations(folder, [0, 5, 10])
    figure = combined(folder)
    by_title = {axes.get_title("left"): axes for axes in figure.axes}
    [entropy] = by_title["Policy entropy"].lines
    assert np.array_equal(entropy.get_ydata(), read_metrics(folder).columns["objective/entropy"])
    assert np.array_equal(entropy.get_xdata(), np.arange(1, 11))
    evaluation = by_title["Held-out problems: Mean@8 and Pass@8"]
    mean, passed = evaluation.lines
    assert np.allclose(mean.get_ydata(), [20, 50, 80])
    assert np.allclose(passed.get_ydata(), [50, 80, 100])
    [band] = evaluation.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((15.0, 85.0))


def test_two_evaluations_are_points_with_whiskers_and_no_line_between(folder):
    write_evaluations(folder, [0, 80], "test")
    axes = combined(folder).axes[0]
    assert not [line for line in axes.lines if line.get_linestyle() not in ("None", "none", "")]
    [container] = axes.containers
    assert container.has_yerr


@pytest.mark.parametrize("num_steps", [0, 1, 2, 25])
def test_a_run_of_any_length_is_drawn_without_a_warning(folder, num_steps):
    write_metrics(folder, num_steps)
    if num_steps == 1:
        write_evaluations(folder, [1])
    found = texts(render(folder))
    assert ("not recorded" in found) == (num_steps != 1)


def test_figures_of_an_empty_folder_name_the_missing_quantities(tmp_path):
    assert texts(render(RunFolder(tmp_path))).count("not recorded") >= 5


def test_values_that_are_missing_or_not_finite_leave_gaps(folder):
    write_evaluations(folder, [0, 1, 2], interval_over_problems=None, pass_at_k=None, k=None)
    folder.metrics_file.write_text(
        '{"step":1,"rollout/reward":"NaN","objective/entropy":0.5}\n{"step":2,"rollout/reward":1.0}\n{"ste'
    )
    found = texts(render(folder))
    assert found.count("not recorded") == 2  # length and clip shares
    assert "validation, Mean@K with 95 % interval over problems" in found


def test_names_are_text_and_no_formulas(folder):
    folder.write_config({"seed": 0, "algorithm": {"name": r"$\frac{$"}})
    write_evaluations(folder, [0, 1, 2], r"$\broken{")
    render(folder)


def test_a_moving_mean_is_centered_and_ignores_missing_values():
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert moving_mean(values, 3).tolist() == [1.5, 2.0, 3.0, 4.0, 4.5]
    values[2] = np.nan
    assert moving_mean(values, 3).tolist() == [1.5, 1.5, 3.0, 4.5, 4.5]
    assert np.isnan(moving_mean(np.full(4, np.nan), 3)).all()
    assert moving_mean(np.array([7.0]), 5).tolist() == [7.0]


def test_a_figures_folder_that_cannot_be_created_is_a_one_line_error(folder):
    folder.figures_dir.write_text("a file")
    with pytest.raises(RunFolderError, match="cannot draw into"):
        draw_run(folder)


def test_figures_use_no_global_state_no_torch_and_no_path_outside_the_runs_directory(folder, tmp_path):
    write_metrics(folder, 5)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from atrium.runs.run_folder import RunFolder\n"
        "from atrium.assemble.pictures import draw_run\n"
        "assert 'matplotlib' not in sys.modules\n"
        "draw_run(RunFolder(Path(sys.argv[1])))\n"
        "assert 'torch' not in sys.modules\nassert 'matplotlib.pyplot' not in sys.modules\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": "/usr/bin", "HOME": str(home)}
    subprocess.run(
        [sys.executable, "-c", code, str(folder.path)], check=True, timeout=120, env=environment, cwd=home
    )
    assert list(home.iterdir()) == []
    assert (folder.cache_dir / "matplotlib").is_dir()


def record(folder, benchmark="aime24", step=0, **changes):
    line = {"step": step, "benchmark": benchmark, "results": RESULTS | changes}
    with folder.evaluations_file.open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_the_latest_evaluation_of_each_benchmark_becomes_a_picture_and_a_drawing(folder):
    record(folder)
    record(folder, step=7)
    record(folder, "math$500")
    draw_evaluation(folder)
    names = ["pass_at_k-aime24-step-000007", "pass_at_k-math$500-step-000000"]
    paths = [folder.figures_dir / f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    assert set(folder.figures_dir.iterdir()) == set(paths)
    assert imread(paths[0])[..., :3].std() > 0.05
    assert "<svg" in paths[1].read_text()


def test_every_k_is_drawn_as_recorded(folder):
    record(folder)
    figure = evaluation_figure(read_evaluations(folder)["aime24"][-1])
    (axes,) = sheet([figure], inches=6.4).axes
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
    draw_evaluation(folder)
    assert list(folder.figures_dir.iterdir()) == []


def test_scores_without_spread_are_drawn_without_a_warning(folder):
    flat = dict.fromkeys(RESULTS["curve"], [0.0] * K)
    nothing = {key: dict.fromkeys(RESULTS[key], 0.0) for key in ("pass_at", "pass_hat")}
    record(folder, curve=flat, mean_at_k=0.0, interval_over_problems=[0.0, 0.1], **nothing)
    draw_evaluation(folder)
    assert len(list(folder.figures_dir.iterdir())) == 2
