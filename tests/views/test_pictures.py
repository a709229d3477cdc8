"""Pictures of windows and of theorems: both formats, equal files for equal numbers, bad folders."""

from __future__ import annotations

import sys
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from atrium.base.errors import RunFolderError
from atrium.catalog.window_figures import plane_picture, windows_picture
from atrium.document.document import Plane, Point
from atrium.method.windows import DIVERGENCES, UNBOUNDED, Window
from atrium.theory.figures import (
    bias_picture,
    entropy_picture,
    gradient_picture,
    moved_mass_picture,
    regression_picture,
    update_picture,
    window_picture,
)
from atrium.theory.results import (
    CoefficientCurves,
    EstimatorBias,
    Faithfulness,
    MethodWindow,
    Optimum,
    RegressionFindings,
    RegressionSteps,
    UpdateCourse,
)
from atrium.views.figures import style
from atrium.views.figures.sheet import save, svg
from atrium.views.figures.style import COLOURS, DASHES, line_style, spread


def curve(name):
    return CoefficientCurves(
        name=name,
        ratio=(0.5, 1.0, 2.0),
        raised=(0.5, 1.0, 0.0),
        lowered=(0.0, -1.0, -2.0),
        at_one=(1.0, -1.0),
    )


def course(name):
    return UpdateCourse(
        name=name,
        entropy_change=(-0.1, -0.2),
        reward_change=(0.1, 0.2),
        kl=(0.01, 0.02),
        reverse_kl=(0.01, 0.03),
        total_variation=(0.1, 0.2),
        dropped_frac=(0.0, 0.3),
        mass_change=(-0.1, 0.1),
        rewarded_mass_change=(0.0, 0.1),
        final_entropy_S=(-0.2, -0.2),
        final_mass_S=(0.1, 0.2),
    )


def biases():
    return [
        EstimatorBias(
            name=name, target="KL", num_tokens=t, is_on_policy=on, token_error=0.1 * t, sequence_error=0.0
        )
        for name in ("k1", "w k3")
        for t in (1, 2)
        for on in (True, False)
    ]


def regression():
    optima = tuple(
        Optimum(objective=name, sampler=sampler, max_difference=error, probability_B=(0.5, 0.3, 0.2))
        for name, error in (("GVPO", 1e-9), ("other", 0.1))
        for sampler in ("own samples", "uniform")
    )
    steps = RegressionSteps(
        kl=(0.1,), reward=(0.6,), max_difference=(0.0,), frontier_kl=(0.0, 0.2), frontier_reward=(0.5, 0.7)
    )
    return RegressionFindings(start_errors=(0.0,), optimum_B=(0.5, 0.3, 0.2), optima=optima, steps=steps)


def method_window(name, constant, *by_probability):
    return MethodWindow(
        name=name, constant=constant, probabilities=(0.01, 0.5), by_probability=by_probability
    )


WINDOWS = [
    method_window("clip", Window(0.8, 1.2)),
    method_window("open", Window(0.0, 5.0)),
    method_window("none", UNBOUNDED),
    method_window("state", None),
    method_window("by token", None, Window(0.0, 9.0), Window(0.5, 1.5)),
]
COURSES = {"random rewards": [course("a"), course("b")], "true rewards": [course("a"), course("b")]}
PICTURES = {
    "theory-gradients": lambda: gradient_picture([curve(f"m{i}") for i in range(10)]),
    "theory-windows": lambda: window_picture(WINDOWS),
    "theory-updates": lambda: update_picture(COURSES, (0.0, 0.1, 1.0)),
    "theory-moved-mass": lambda: moved_mass_picture(COURSES, (0.0, 0.1, 1.0)),
    "theory-entropy": lambda: entropy_picture(COURSES),
    "theory-bias": lambda: bias_picture(
        biases(), [Faithfulness(name="a", distance_kl=(0.0, 1.0), cosine=(1.0, -0.2))]
    ),
    "theory-gvpo": lambda: regression_picture(regression()),
    "windows": lambda: windows_picture(
        {kind: (DIVERGENCES[kind], 0.6) for kind in ("kl3", "k1_signed", "chi2", "ratio", "jensen_shannon")}
    ),
    "plane": lambda: plane_picture(
        {"clip": Window(0.8, 1.2), "wide": Window(0.0, 5.0), "free": UNBOUNDED},
        Window(0.8, 1.28),
    ),
}


@pytest.fixture(autouse=True)
def _coarse(monkeypatch):
    """Fewer pixels: drawing takes a fraction of the time."""
    monkeypatch.setattr(style, "_DPI", 40)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_a_png_and_an_svg(name, tmp_path):
    paths = save([PICTURES[name]()], tmp_path / "figures", tmp_path / "cache")
    assert paths == [tmp_path / "figures" / f"{name}.{kind}" for kind in ("png", "svg")]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(paths[1]).getroot().tag.endswith("svg")
    assert "matplotlib.pyplot" not in sys.modules


def test_equal_numbers_give_equal_files(tmp_path):
    first, second = (save([PICTURES["plane"]()], tmp_path / side, tmp_path / "cache") for side in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match="cannot draw into") as caught:
        save([PICTURES["theory-gvpo"]()], tmp_path / "file", tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_equal_points_are_one_under_all_of_their_names():
    windows = {"a": (0.8, 1.28), "b": (0.8, 1.28), "c": (0.7, 1.3)}
    points = tuple(Point(name=name, x=lower, y=upper) for name, (lower, upper) in windows.items())
    drawn = ElementTree.fromstring(svg(Plane(key="plane", title="Plane", points=points)))
    titles = [part.text for part in drawn.iter() if part.tag.endswith("}title")]
    assert titles == ["a = b: [0.800, 1.280]", "c: [0.700, 1.300]"]


def test_names_of_many_points_do_not_cover_each_other():
    points = tuple(Point(name=f"arm{n}", x=0.8, y=1 + n / 1e4) for n in range(1, 13))
    drawn = ElementTree.fromstring(svg(Plane(key="plane", title="Plane", points=points)))
    labels = [part for part in drawn.iter() if part.tag.endswith("}text") and part.text.startswith("arm")]
    heights = sorted(float(label.get("y")) for label in labels)
    assert len(heights) == 12
    assert min(below - above for above, below in pairwise(heights)) > 12.0
    assert 0.0 < heights[0] < heights[-1] < 260.0


def test_labels_keep_their_order_and_their_distance():
    assert spread([1.0, 0.0, 0.1], gap=0.5, least=0.0) == [1.0, 0.0, 0.5]
    assert spread([0.0], gap=0.5, least=0.2) == [0.2]
    assert spread([], gap=0.5, least=0.0) == []


def test_the_first_lines_all_differ():
    styles = [line_style(index) for index in range(len(COLOURS) * len(DASHES))]
    assert len(set(styles)) == len(styles)
