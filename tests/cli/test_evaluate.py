"""`atrium evaluate` in this process: on what a real run trained, resumed, on a suite, and refused."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow.parquet as pq
import pytest
from tests.benchmark_files import small_suite

from atrium.base.json_lines import read_json_lines
from atrium.cli.app import main
from atrium.grading.grader import GRADER_VERSION
from atrium.runs.evaluation_document import evaluation_document
from atrium.runs.evaluation_parts import EvaluationParts
from atrium.runs.find import TRAINED, find_run, list_runs
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import read_samples, write_evaluation
from atrium.runs.status import read_status
from atrium.views.terminal import print_document, standard_output

BENCHMARK, STEP = "arithmetic-test", 2


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """Where a run of two steps has been trained."""
    runs_dir = tmp_path_factory.mktemp("evaluated") / "runs"
    settings = (
        "debug=tiny_steps",
        "seed=1",
        f"num_steps={STEP}",
        "tracking.figures=false",
        "tracking.progress=off",
    )
    assert main(["train", *settings, f"runs_dir={runs_dir}", "experiment_name=trained"]) == 0
    return runs_dir


@pytest.fixture(scope="module")
def trained(runs_dir):
    return find_run(runs_dir, "last", last=TRAINED)


@pytest.fixture
def evaluate(runs_dir, capsys):
    """Evaluates and gives the folder and what was printed."""

    def run(*arguments):
        before = {folder.path for folder in list_runs(runs_dir)}
        assert main(["evaluate", "--runs-dir", str(runs_dir), *arguments]) == 0
        made = [folder for folder in list_runs(runs_dir) if folder.path not in before]
        return (made[0] if made else None), capsys.readouterr().out

    return run


def rows_of(folder, benchmark=BENCHMARK, step=STEP):
    return pq.read_table(folder.evaluation_path(benchmark, step)).to_pylist()


@pytest.mark.full
def test_a_checkpoint_gets_the_rows_and_scores_that_its_run_gave_it(evaluate, trained):
    folder, printed = evaluate("--run", "last", "tracking.figures=true")
    assert rows_of(folder) == rows_of(trained)
    (record,) = read_json_lines(folder.evaluations_file).records
    (before,) = [
        r
        for r in read_json_lines(trained.evaluations_file).records
        if (r["benchmark"], r["step"]) == (BENCHMARK, STEP)
    ]
    settings = record["results"].pop("settings")
    assert record["results"] == before["results"]
    assert (settings["prompt_template"], settings["thinking"], settings["seed"]) == ("question", False, 0)
    assert len(settings["prompt_template_hash"]) == 64
    config = json.loads(folder.config_file.read_text())
    checkpoint = {"run": trained.name, "step": STEP, "seed": 1}
    assert (config["kind"], config["checkpoint"]) == ("evaluation", checkpoint)
    summary = json.loads(folder.summary_file.read_text())
    last = summary["evaluations"][BENCHMARK]["last"]
    assert last.keys() >= {"mean_at_k", "interval_sampling", "maj_at_k", "truncated_frac"}
    assert (summary["status"], summary["num_tokens"]) == ("finished", record["results"]["num_tokens"])
    names = {path.name for path in folder.figures_dir.iterdir()}
    assert names == {f"pass_at_k-{BENCHMARK}-step-00000{STEP}.{kind}" for kind in ("png", "svg")}
    for text in (
        "Mean@2",
        "Maj@2",
        "Pass@2",
        "Pass^2",
        "not estimable",
        "truncated",
        "over problems",
        "level",
    ):
        assert text in printed
    assert "arithmetic-test 16/16" in printed, "progress is told where there is no terminal"
    assert "tokens/s" in printed


@pytest.mark.full
def test_an_evaluation_whose_process_died_goes_on_and_ends_with_the_same_rows(evaluate, trained, runs_dir):
    folder, _ = evaluate("--run", trained.path.name, "evaluation.num_samples=4")
    whole, scores = rows_of(folder), folder.evaluations_file.read_text()
    path = folder.evaluation_path(BENCHMARK, STEP)
    problems = {row["problem_id"] for row in whole[:20]}
    samples = _read_back(folder, path)
    path.unlink()
    write_evaluation(
        path.parent / "parts" / path.stem / "part-000001.parquet",
        STEP,
        [sample for sample in samples if sample.problem.problem_id in problems],
    )
    for file in (folder.evaluations_file, folder.summary_file, folder.status_file):
        file.unlink()
    made, printed = evaluate("--resume", folder.path.name)
    assert made is None
    assert "5 of 8 problems are already finished" in printed
    # This part is less than a wave, so the rest was sampled in another batch, to the last bits.
    bits = [pytest.approx(row.pop("logprob_sum"), abs=1e-4) for row in whole]
    rows = rows_of(folder)
    assert [row.pop("logprob_sum") for row in rows] == bits
    assert rows == whole
    assert _without_time(folder.evaluations_file.read_text()) == _without_time(scores)
    assert not (path.parent / "parts").exists()


def _read_back(folder, path):
    from atrium.base.records import Problem

    problems = {
        row["problem_id"]: Problem(
            problem_id=row["problem_id"],
            question=row["question"],
            answer=row["gold"],
            metadata=json.loads(row["metadata"]),
        )
        for row in read_samples(path)
    }
    found = EvaluationParts(path, step=STEP).read(problems.values(), num_samples=4)
    return [sample for samples in found.values() for sample in samples]


def _without_time(text):
    return [json.loads(line) | {"time": 0} for line in text.splitlines()]


@pytest.mark.full
def test_a_suite_gets_scores_for_each_benchmark_and_their_macro_average(evaluate, tmp_path):
    folder, printed = evaluate("--run", "last", *small_suite(tmp_path), "evaluation.max_new_tokens=5000")
    summary = json.loads(folder.summary_file.read_text())
    assert summary["evaluations"].keys() == {"aime24", "aime25", "aime26"}
    macro = summary["macro_average"]
    means = [entry["last"]["mean_at_k"] for entry in summary["evaluations"].values()]
    assert (macro["num_benchmarks"], macro["mean_at_k"]) == (3, pytest.approx(sum(means) / 3))
    assert "macro average over 3 benchmarks" in printed
    assert "not evaluation.max_new_tokens=5000" in folder.log_file.read_text()


@pytest.mark.full
@pytest.mark.parametrize("num_done", [1, 3])
def test_a_suite_goes_on_after_any_of_its_benchmarks_and_a_finished_one_stays_finished(
    evaluate, runs_dir, tmp_path, num_done
):
    folder, _ = evaluate("--run", "last", *small_suite(tmp_path), "tracking.figures=false")
    names = ("aime24", "aime25", "aime26")
    rows = [rows_of(folder, name) for name in names]
    scores = _without_time(folder.evaluations_file.read_text())
    if num_done < len(names):  # as a process leaves it that died between two benchmarks
        for name in names[num_done:]:
            folder.evaluation_path(name, STEP).unlink()
        done = folder.evaluations_file.read_text().splitlines(keepends=True)[:num_done]
        folder.evaluations_file.write_text("".join(done))
        for file in (folder.summary_file, folder.status_file):
            file.unlink()
    code = main(["evaluate", "--runs-dir", str(runs_dir), "--resume", folder.path.name])
    assert (code, read_status(folder.status_file).state) == (0, "finished")
    assert [rows_of(folder, name) for name in names] == rows
    assert _without_time(folder.evaluations_file.read_text()) == scores


def test_a_path_into_a_run_means_that_run(evaluate, trained):
    policy = trained.checkpoint_path(STEP) / "policy"
    for path in (policy, policy.parent, trained.path):
        _, printed = evaluate("model=hub", f"model.source={path}", "--cfg")
        config = json.loads(printed)
        assert config["checkpoint"] == {"run": trained.name, "step": STEP, "seed": 1}
        assert config["model"]["prompt"] == "question"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--best"], "require --run"),
        (["--run", "last", "--step", "7"], "no checkpoint at step 7"),
        (["--run", "no-such-run"], "there is no run"),
        (["--resume", "last", "seed=1"], "uses the recorded settings"),
        (["--resume", "trained"], "is not an evaluation"),
        (
            ["evaluation.num_samples=4", "evaluation.pass_at=[8]"],
            "evaluation.pass_at must be at most evaluation.num_samples=",
        ),
        (["model=hub", "model.source=./nowhere"], "there is no model folder"),
        (["model.prompt=qwen3_thinking"], "use model.thinking=true"),
        (["--runs"], "unknown flag; did you mean --run?"),
        ([], "atrium evaluate requires a model"),
        (["benchmark=aime24"], "atrium evaluate requires a model"),
        (["algorithm=grpo"], "has no effect on an evaluation"),
        (["model=tiny", "grader.answer='Answer: {answer}'"], "the grader finds no answer"),
        (["model=tiny", "model.thinking=true"], "set model.thinking=false, because it writes no </think>"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_loaded(runs_dir, trained, capsys, arguments, message):
    given = [trained.path.name if argument == "trained" else argument for argument in arguments]
    assert main(["evaluate", "--runs-dir", str(runs_dir), *given]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert message in printed


def test_without_an_evaluation_there_is_nothing_to_resume(tmp_path, capsys):
    assert main(["evaluate", "--runs-dir", str(tmp_path), "--resume", "last"]) == 2
    assert "there are no runs" in capsys.readouterr().err


def test_help_says_what_can_be_evaluated(capsys):
    assert main(["evaluate", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "benchmark=aime24 evaluation.num_samples=32" in printed
    assert "--resume" in printed


def test_an_evaluation_is_listed_with_the_runs_and_shown_with_its_problems_and_scores(
    evaluate, runs_dir, capsys
):
    folder, _ = evaluate("--run", "last", "evaluation=greedy", "tracking.figures=false")
    assert isinstance(folder, RunFolder)
    assert main(["runs", "--runs-dir", str(runs_dir)]) == 0
    assert folder.name in capsys.readouterr().out
    assert main(["show", folder.path.name, "--runs-dir", str(runs_dir)]) == 0
    printed = capsys.readouterr().out
    assert re.match(rf"finished  {folder.name}  (\d+) of \1 problems  ", printed)
    assert f"{BENCHMARK}, " in printed
    assert "tokens sampled" not in printed
    assert "not_read" not in printed
    assert printed.count("not in the defaults") <= 5, "the checkpoint and the model"


@pytest.mark.full
def test_a_policy_that_was_exported_or_copied_is_asked_as_it_was_trained(
    evaluate, runs_dir, trained, tmp_path, capsys
):
    target = tmp_path / "exported"
    assert main(["export", trained.name, "--to", str(target), "--runs-dir", str(runs_dir)]) == 0
    own = json.loads(trained.config_file.read_text())
    source = f"model.source={target}"
    folder, _ = evaluate("model=hub", source, "tracking.figures=false", "evaluation.num_samples=2")
    asked = json.loads(folder.config_file.read_text())
    for section, key in (("model", "prompt"), ("model", "thinking"), ("evaluation", "temperature")):
        assert asked[section][key] == own[section][key]
    capsys.readouterr()
    lines = ["model=hub", source, "model.prompt=bare", "evaluation.temperature=0.5", "--cfg"]
    assert main(["evaluate", "--runs-dir", str(runs_dir), *lines]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["model"]["prompt"] == "bare"
    assert "note: model.prompt=bare, but this policy was trained with question" in printed.err
    assert "note: evaluation.temperature=0.5" in printed.err
    policy = trained.checkpoint_path(trained.checkpoint_steps()[-1]) / "policy"
    copied = shutil.copytree(policy, tmp_path / "copied")
    lines = ["model=hub", f"model.source={copied}", "--cfg"]
    assert main(["evaluate", "--runs-dir", str(runs_dir), *lines]) == 0
    of_checkpoint = json.loads(capsys.readouterr().out)
    assert (of_checkpoint["model"]["prompt"], of_checkpoint["evaluation"]["temperature"]) == (
        own["model"]["prompt"],
        own["evaluation"]["temperature"],
    )
    (target / "atrium.json").write_text("{")
    assert main(["evaluate", "--runs-dir", str(runs_dir), "model=hub", source]) != 0
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("num", "cut", "words"),
    [
        (2, 0.0, "check model.thinking"),
        (2, 0.5, "and evaluation.max_new_tokens (null: rollout.max_new_tokens)"),
    ],
)
def test_reasoning_that_did_not_end_is_named_once_beside_the_score(runs_dir, capsys, num, cut, words):
    run = find_run(runs_dir, "last", last=TRAINED)
    record = read_json_lines(run.evaluations_file).records[-1]
    record["results"] |= {"num_endless_thoughts": num, "num_samples": 16, "truncated_frac": cut}
    copy = RunFolder(runs_dir / f"endless-{cut}")
    copy.path.mkdir()
    copy.evaluations_file.write_text(json.dumps(record) + "\n")
    print_document(standard_output(), evaluation_document(copy))
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("in 2 of 16 answers the reasoning did not end: check model.thinking") == 1
    assert words in printed


def test_a_benchmark_with_its_own_verifier_records_and_shows_that_verifiers_version(evaluate, tmp_path):
    own = "benchmark.members.aime25.grader={kind: exact}"
    folder, _ = evaluate("--run", "last", *small_suite(tmp_path), own, "tracking.figures=false")
    records = read_json_lines(folder.evaluations_file).records
    graders = {one["benchmark"]: one["results"]["settings"]["grader"].split(",")[0] for one in records}
    assert graders == {"aime24": "math", "aime25": "exact", "aime26": "math"}
    provenance = json.loads(folder.provenance_file.read_text())
    assert provenance["data"]["grader_version"].startswith("math, ")
    earlier = {
        **provenance,
        "data": {**provenance["data"], "grader_version": "math, grader 2, math-verify 0.9"},
    }
    for record, shown in ((provenance, f"exact, grader {GRADER_VERSION}"), (earlier, "exact, grader 2")):
        folder.provenance_file.write_text(json.dumps(record))
        _, printed = evaluate("--regrade", folder.path.name)
        assert f"recorded: {shown}, math-verify" in " ".join(printed.split())
