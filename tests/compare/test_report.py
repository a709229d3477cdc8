"""Reports: one set of tables in the terminal, HTML, Markdown and LaTeX."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from tests.compare.documents import answer_of, document_of, files_of, tables_of

from atrium.cli.app import main
from atrium.compare.document_figures import grid_figure
from atrium.compare.run_comparison import compare_runs
from atrium.views.figures.sheet import svg


def test_the_command_prints_the_verdict_and_writes_html_markdown_and_latex(make_study, capsys, tmp_path):
    make_study({"grpo": 0.0, "atr": 0.25, "clip_higher": 0.01}, num_seeds=5)
    assert (
        main(["compare", "study", "--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    )
    printed = capsys.readouterr().out
    assert "atr against grpo: atr is better than grpo by " in printed
    assert (
        "clip_higher against grpo: not distinguishable; if no run diverges, differences larger than "
        in printed
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.html",
        "comparison.md",
        "comparison.tex",
    ]


def test_the_reports_folder_in_runs_is_not_listed_as_a_run(make_study, capsys, tmp_path):
    runs = make_study({"grpo": 0.0, "atr": 0.1}, num_seeds=2)
    runs_dir = str(tmp_path / "runs")
    assert main(["compare", *(run.path.name for run in runs), "--runs-dir", runs_dir, "--effect", "5"]) == 0
    assert len(list((tmp_path / "runs" / "reports").iterdir())) == 3
    assert "seeds for 5 points" in capsys.readouterr().out
    main(["runs", "--runs-dir", runs_dir])
    assert "reports" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare"], "a comparison requires two arms"),
        (["compare", "atr-s0"], "is a single run; add runs with other settings"),
        (
            ["compare", "study", "--by", "delta"],
            "unknown setting delta for grouping; did you mean divergence.delta?",
        ),
        (["compare", "study", "--at", "epochs"], "invalid choice"),
        (["compare", "nothing"], "there is no run"),
        (["compare", "study", "--effect", "0"], "argument --effect: expected a number greater than 0"),
        (["compare", "study", "--area", "rollout/reward"], "require --until STEP"),
        (["compare", "study", "--steps-to", "rollout/reward", "--until", "4"], "expected METRIC=VALUE"),
        (["diff", "nothing", "else"], "there is no run"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_two(make_run, capsys, tmp_path, arguments, said):
    make_run("atr", 0, {("exam", 4): [1]})
    assert main([*arguments, "--runs-dir", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_outcomes_of_curves_are_compared_on_request(make_study, capsys, tmp_path):
    runs = make_study({"grpo": 0.0, "atr": 0.2}, num_seeds=2)
    for folder in runs:
        speed = 0.1 + 0.1 * ("atr" in folder.name) + 0.01 * folder.name.count("-s1-")
        lines = [{"step": step, "rollout/reward": speed * step} for step in range(1, 5)]
        folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ["--area", "rollout/reward", "--steps-to", "rollout/reward=0.6", "--until", "4"]
    assert main(["compare", "study", "--runs-dir", str(tmp_path / "runs"), *asked, "--no-files"]) == 0
    said = capsys.readouterr().out
    assert "Training: mean rollout/reward over steps 1 to 4, against grpo" in said
    assert re.search(r"atr +2 +0\.5\d* +\+0\.25", said)
    assert re.search(r"grpo +2 +4 +– +–", said), "those that do not reach it count with the horizon"


def test_ceilings_are_compared_if_every_curve_shows_one(make_study, capsys, tmp_path):
    for folder in make_study({"grpo": 0.0, "atr": 0.2, "clip_higher": 0.0}, num_seeds=2):
        midpoint = {"atr": 2.0, "grpo": 4.0}.get(folder.path.name.split("-")[2], 400.0)
        way = [1.0 / (1.0 + (midpoint / spent) ** 2.0) if spent else 0.0 for spent in range(30)]
        lines = [
            {"step": spent + 1, "rollout/num_tokens": 100, "rollout/reward": 0.1 + 0.6 * share}
            for spent, share in enumerate(way)
        ]
        folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ["--ceiling", "rollout/reward", "--baseline", "grpo", "--no-files"]
    assert main(["compare", "study", "--runs-dir", str(tmp_path / "runs"), *asked]) == 0
    said = capsys.readouterr().out
    assert re.search(r"grpo +2 of 2 +0.7 +– +– +400", said)
    assert re.search(r"atr +2 of 2 +0.7 .*0.500", said)
    assert re.search(r"clip_higher +0 of 2 +unknown", said), "it has not bent yet"


def test_figures_are_well_formed_and_the_page_loads_nothing(make_study):
    comparison = compare_runs(make_study({"grpo": 0.0, "atr": 0.2}, benchmarks=("easy", "hard")))
    figures = [figure for section in document_of(comparison).sections for figure in section.figures]
    assert len(figures) == 8
    for figure in figures:
        assert ElementTree.fromstring(svg(figure)).tag.endswith("svg")
    page = files_of(comparison)["html"]
    tags = Tags()
    tags.feed(page)
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert tags.seen.count("svg") == 8
    assert "http-equiv" in page


def test_hostile_names_are_text_everywhere(make_run):
    name = "<script>alert(1)</script>|&$_$中\\"
    runs = [make_run("grpo", 0, {("exam", 4): [1, 2, 3]}), make_run("atr", 0, {("exam", 4): [2, 2, 3]})]
    for run, value in zip(runs, ("plain", name), strict=True):
        text = run.config_file.read_text().replace('"exact"', '"exact"')
        run.config_file.write_text(
            text.replace('"optimizer": {', '"model": {"kind": ' + repr_json(value) + '}, "optimizer": {')
        )
    comparison = compare_runs(runs, by=["model.kind"])
    files = files_of(comparison)
    assert "<script>" not in files["html"]
    assert "&amp;$_$中" in files["html"]
    assert "<script>" not in files["md"]
    assert "|\\&\\$\\_\\$?\\textbackslash{}" in files["tex"]


def test_arms_of_the_same_method_are_reported_as_such(make_run, capsys, tmp_path):
    window = {"kind": "window", "lower": 0.8, "upper": 1.28}
    make_run("clip_higher", 0, {("exam", 4): [1, 2, 3]})
    make_run("mine", 0, {("exam", 4): [2, 2, 3]}, divergence=window)
    main(["compare", "study", "--no-files", "--runs-dir", str(tmp_path / "runs")])
    printed = capsys.readouterr().out
    assert "clip_higher and mine are the same method" in printed
    assert "one seed (clip_higher, mine)" in printed


def test_methods_of_unknown_kinds_are_compared_by_their_text(make_run, capsys, tmp_path):
    unknown = {"kind": "of_a_plugin", "delta": 0.1}
    make_run("grpo", 0, {("exam", 4): [1, 2, 3]})
    for name in ("mine", "theirs"):
        make_run(name, 0, {("exam", 4): [2, 2, 3]}, divergence=unknown)
    main(["compare", "study", "--no-files", "--runs-dir", str(tmp_path / "runs")])
    printed = capsys.readouterr().out
    assert "mine and theirs are the same method" in printed
    assert "grpo and" not in printed


def test_arms_of_equal_windows_are_one_method(make_run):
    windows = {
        "a": {"kind": "window", "lower": 0.8, "upper": 1.28},
        "b": {"kind": "asymmetric_ratio", "epsilon_low": 0.2, "epsilon_high": 0.28},
        "c": {"kind": "window", "lower": 0.7, "upper": 1.3},
        "free": {"kind": "none"},
    }
    runs = [make_run(name, 0, {("exam", 4): [1, 2, 3]}, divergence=found) for name, found in windows.items()]
    comparison = compare_runs(runs, by=["algorithm.name"])
    assert [row[1] for row in tables_of(comparison)["Arms"]] == [
        "[0.800, 1.280]",
        "[0.800, 1.280]",
        "[0.700, 1.300]",
        "none",
    ]
    assert "a and b are the same method: their windows [l, u] are equal" in answer_of(comparison)


def test_solved_problems_are_counted_for_each_arm(make_run):
    counts = {"atr": [4, 2, 0, 1], "grpo": [4, 0, 0, 3]}
    runs = [make_run(name, 0, {("exam", 4): found}) for name, found in counts.items()]
    tables = tables_of(compare_runs(runs))
    solved = tables["Solved problems, exam (4 problems)"]
    assert solved == [["grpo", "1", "1", "2", "0"], ["atr", "1", "2", "1", "1"]]
    assert tables["Pass@k in percent against k, exam"][1] == ["atr", "43.8", "58.3", "75.0"]


def test_a_large_benchmark_makes_no_large_figure(make_run):
    runs = [make_run(name, 0, {("exam", 4): [1, 2, 3] * 500}) for name in ("atr", "grpo")]
    cells = parts(svg(grid_figure(compare_runs(runs), "exam")), "path")
    assert sum("fill-opacity" in part.get("style", "") for part in cells) == 2 * 600


def test_statistics_that_need_many_seeds_are_shown_with_enough_seeds(make_study):
    few, many = (tables_of(compare_runs(make_study({"grpo": 0.0, "atr": 0.2}, num_seeds=n))) for n in (2, 10))
    assert len(many) == len(few) + 1
    [[row]] = [rows for title, rows in many.items() if "over seeds alone" in title]
    assert row[1] == "0.002"
    assert "–" not in row


def test_verdicts_name_arm_and_baseline(make_study):
    lines = answer_of(compare_runs(make_study({"grpo": 0.0, "atr": 0.0})))
    assert lines[1].startswith(
        "atr against grpo: not distinguishable; if no run diverges, differences larger than "
    )


def parts(svg, kind):
    """All elements of one kind."""
    return [part for part in ElementTree.fromstring(svg).iter() if part.tag.endswith(f"}}{kind}")]


class Tags(HTMLParser):
    """Collects the names of all tags."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)


def repr_json(text):
    return json.dumps(text)
