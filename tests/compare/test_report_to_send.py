"""The report that one can send: the sentences, the table for a paper, training, claims, the command."""

from __future__ import annotations

import json
import re

import pytest
from tests.compare.documents import files_of, results_latex

from atrium.cli.app import main
from atrium.compare.document import report_name
from atrium.compare.document_sentences import paper_sentences
from atrium.compare.document_tables import paper_name, results_table
from atrium.compare.run_comparison import compare_runs
from atrium.compare.training_document import read_training
from atrium.views.cells import texts


@pytest.fixture
def study(make_study):
    return compare_runs(make_study({"grpo": 0.0, "atr": 0.25, "clip_higher": 0.01}, num_seeds=5))


def test_the_sentence_says_no_more_than_the_interval(study):
    better, alike = paper_sentences(study)
    low, high = study.headline_pairs[0].comparison.difference.new_seeds_and_problems.interval
    assert better.startswith("atr scores ")
    assert f"more than grpo in Mean@4 on exam (95 % interval {100 * low:.1f} to {100 * high:.1f}" in better
    assert "over 5 seeds per method and 40 problems. Runs of atr: 0 of 5" in better
    assert "runs of grpo: 0 of 5 (0.0 to 52.2 %) diverged and 0 of 5 (0.0 to 52.2 %) collapsed." in better
    excluded = float(
        re.search(r"no difference of more than ([\d.]+) points in Mean@4 on exam \(95 %", alike)[1]
    )
    low, high = study.headline_pairs[1].comparison.difference.new_seeds_and_problems.interval
    assert excluded / 100 >= max(-low, high) > excluded / 100 - 0.0011
    assert "jointly for 2 candidates, Bonferroni" in alike


def test_one_seed_or_equal_windows_give_no_sentence_about_methods(make_run):
    one = [make_run("grpo", 0, {("exam", 4): [1, 2, 3]}), make_run("atr", 0, {("exam", 4): [4, 4, 4]})]
    assert paper_sentences(compare_runs(one)) == [
        "Nothing can be written about atr and grpo as methods: an arm with one seed is not judged."
    ]
    window = {"kind": "window", "lower": 0.8, "upper": 1.2}
    twins = [one[0], make_run("mine", 0, {("exam", 4): [2, 2, 3]}, divergence=window)]
    assert paper_sentences(compare_runs(twins)) == [
        "mine and grpo are the same method: their windows [l, u] are equal."
    ]


def test_the_table_for_a_paper_has_caption_label_and_the_best_score_bold(study):
    text = results_latex(study)
    assert text.count(r"\end{table}") == text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert r"\label{tab:grpo-vs-atr-vs-clip-higher}" in text
    caption = re.search(r"\\caption\{(.*)\}\n", text)[1]
    assert r"95 \% confidence intervals" in caption
    assert "hold jointly for 2 candidates (Bonferroni)." in caption
    assert "Differences are in percentage points" in caption
    rows = {line.split(" & ")[0]: line for line in text.splitlines() if line.endswith(r"\\")}
    best = f"{100 * study.arms[1].scores['mean']['exam'].value:.1f}"
    assert rf"& \textbf{{{best}}} {{\small [" in rows["ATR"]
    assert r"\textbf" not in rows["GRPO"]
    assert rows["GRPO"].endswith(r"& -- \\")
    assert len({line.count("&") for line in rows.values()}) == 1, "every row has all columns"
    assert not re.search(r"(?<!\\)[%#_]", text.replace("95 \\%", "")), "all that TeX reads is escaped"


def test_no_arm_is_bold_or_called_best_unless_it_is_better_than_every_other(make_study):
    found = compare_runs(make_study({"grpo": 0.0, "atr": 0.2, "clip_higher": 0.2}))
    assert set(found.best.values()) == {None}
    assert r"\textbf" not in results_latex(found)
    assert re.search(r"is highest at .* over .*: not decided", files_of(found)["md"])


def test_one_seed_has_no_interval_in_any_output_format(make_study):
    found = compare_runs(make_study({"grpo": 0.0, "atr": 0.3}, num_seeds=1))
    files = files_of(found)
    for suffix, text in files.items():
        assert "one seed: not judged" in text, suffix
        assert "intervals for new seeds" not in text
        assert "Intervals are 95" not in text
        assert not re.search(r"\[([-+]\d|\d\d)", text), suffix
    assert "is better than" not in "".join(files.values())


def test_the_files_hold_sentences_curves_claims_and_all_tables(study):
    files = files_of(study, claims=["a claim: shown"])
    for sentence in paper_sentences(study):
        assert sentence in files["html"]
        assert f"% {sentence}" in files["tex"]
        assert sentence in files["md"]
    assert all("a claim: shown" in content for content in files.values())
    assert "Training reward by step" in files["html"]
    assert "Training: mean rollout/reward over steps 1 to 4" in files["tex"].partition(r"\endinput")[2]
    assert "<script" not in files["html"]
    assert report_name(study) == "grpo-vs-atr-vs-clip_higher"


def test_lagging_batches_are_reported_with_their_age_and_its_effect(make_study):
    runs = make_study({"grpo": 0.0, "atr": 0.1}, num_seeds=2)
    assert all("Staleness" not in one.title for one in read_training(arms_of(runs)).tables)
    for run in runs:
        age = 2.0 if "atr" in run.name else 0.0
        lines = [
            {
                "step": step,
                "rollout/reward": 0.5,
                "rollout/staleness_steps": age,
                "objective/kl_before_update": 0.01 * age,
            }
            for step in range(1, 5)
        ]
        run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (table,) = [one for one in read_training(arms_of(runs)).tables if "Staleness" in one.title]
    assert texts(table.rows) == [["grpo", "0", "0", "–"], ["atr", "2", "0.02", "–"]]


def arms_of(runs):
    return [one.arm for one in compare_runs(runs).arms]


def test_the_command_prints_sentences_for_a_paper_and_writes_the_files(make_study, capsys, tmp_path):
    make_study({"grpo": 0.0, "atr": 0.25}, num_seeds=5)
    runs_dir, out = str(tmp_path / "runs"), tmp_path / "out"
    assert main(["report", "study", "--runs-dir", runs_dir, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("number of seeds not planned\n\nSentences for a paper\natr scores ")
    assert {path.suffix for path in out.iterdir()} == {".html", ".md", ".tex"}
    assert all(str(path) in said for path in out.iterdir())
    picture = out / "picture.svg"
    assert main(["report", "study", "--runs-dir", runs_dir, "--no-files", "--picture", str(picture)]) == 0
    assert b"atr scores " in picture.read_bytes()
    assert main(["report", "study", "--runs-dir", runs_dir, "--picture", "picture.gif"]) == 2
    assert "--picture picture.gif: the file name must end in .png or .svg or .pdf" in capsys.readouterr().err
    assert main(["report", "nothing", "--runs-dir", runs_dir]) == 2


def test_runs_of_a_claims_sweep_are_checked_against_the_claim(make_study, capsys, tmp_path):
    make_study({"grpo": 0.0, "atr": 0.25}, num_seeds=2, experiment="atr_laptop")
    assert main(["report", "atr_laptop", "--runs-dir", str(tmp_path / "runs"), "--no-files"]) == 0
    said = capsys.readouterr().out
    assert (
        'arXiv 2602.05494, "ATR-GRPO improves final performance over clipping." scale=laptop: no verdict; '
        in said
    )
    assert "its settings match no arm of sweep atr_laptop" in said


def test_names_of_algorithms_are_spelled_as_in_papers_and_labels_stay():
    wanted = {
        "dr_grpo": "Dr. GRPO",
        "clip_higher": "Clip higher",
        "reinforce_plus_plus": "REINFORCE plus plus",
        "grpo delta=0.02": "GRPO delta=0.02",
        "ATR (ours)": "ATR (ours)",
    }
    assert {name: paper_name(name, name.partition(" ")[0]) for name in wanted} == wanted
    assert paper_name("mine", "grpo") == "mine"


def test_labels_of_the_user_stay_in_the_table_for_a_paper(make_study):
    runs = make_study({"grpo": 0.0}, num_seeds=2, label="ours")
    comparison = compare_runs([*runs, *make_study({"atr": 0.1}, num_seeds=2)], renamed={"atr": "mine"})
    assert {row.cells[0] for row in results_table(comparison).rows} == {"mine", "ours"}
