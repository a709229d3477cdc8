"""Runs that diverged count, and missing runs withhold the verdict: new run directories, and recorded ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.compare.documents import answer_of, notes_of, results_latex, tables_of
from tests.run_records import leave

from atrium.base.errors import ConfigError, RunFolderError
from atrium.cli.app import main
from atrium.compare.collapse import collapses_of
from atrium.compare.diverged_runs import answers_used
from atrium.compare.document_sentences import paper_sentences
from atrium.compare.run_comparison import compare_runs
from atrium.runs.reader import read_overview
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState
from atrium.stats.wording import points, rounded_up

EXAM, NUM_PROBLEMS = "exam", 20
RECORDED = Path(__file__).parents[1] / "recorded" / "6991847"


@pytest.fixture
def study(make_run):
    """Runs by algorithm and seed: `add` makes one with a score, or in another state, or diverged."""
    folders = []

    def add(algorithm, seed, correct=2, *, state=RunState.FINISHED, cause=None, diverged_to=None, **settings):
        until = None if state is RunState.FINISHED else 2
        counts = {(EXAM, 0): [2] * NUM_PROBLEMS, (EXAM, 4): _answers(correct, seed)}
        folder = make_run(algorithm, seed, counts, until=until, state=state, **settings)
        if cause is not None:
            status = json.loads(folder.status_file.read_text())
            folder.status_file.write_text(json.dumps({**status, "cause": cause}))
        if diverged_to is not None:
            _evaluate(folder, 3, _answers(diverged_to, seed))
        folders.append(folder)
        return folder

    def compare(**options):
        return compare_runs(folders, baseline="grpo", **options)

    add.compare = compare
    return add


def _answers(correct, seed):
    return [min(4, correct + (index + seed) % 2) for index in range(NUM_PROBLEMS)]


def _evaluate(folder, step, counts):
    """Add the evaluation of the policy that a run diverged to, as the loop does, to a run that has ended."""
    from tests.compare.conftest import _samples

    from atrium.base.records import BenchmarkResult
    from atrium.evaluation.results import summarize

    status = folder.status_file.read_text()
    answers = _samples(counts, 4)
    writer = RunFolderWriter(folder)
    results = summarize(answers, num_samples=4, pass_at=[1, 4])
    results["draws"] = {"evaluation_seed": 0, "run_seed": int(folder.path.name.split("-s")[-1].split("-")[0])}
    writer.evaluation(BenchmarkResult(step=step, benchmark=EXAM, samples=answers, results=results))
    writer.close()
    folder.status_file.write_text(status)


def _verdict(comparison, arm="atr"):
    [pair] = [one for one in comparison.headline_pairs if one.candidate == arm]
    return pair.verdict


def test_diverged_runs_count_with_their_score_and_as_always_wrong(study):
    for seed in range(5):
        study("grpo", seed, 3)
        diverges = {"state": RunState.FAILED, "cause": "diverged", "diverged_to": 2} if seed > 2 else {}
        study("atr", seed, 3, **diverges)
    comparison = study.compare()
    pair = comparison.headline_pairs[0]
    assert pair.comparison.difference.num_seeds == 5
    assert pair.comparison.difference.value == pytest.approx(-0.1)
    assert pair.if_wrong.difference.value == pytest.approx(-0.35)
    assert pair.verdict.kind == "not_distinguishable"
    assert "whether the runs that diverged (seed 3 of atr, seed 4 of atr) count" in pair.verdict.words
    assert comparison.arms[1].diverged.words == "2 of 5 (5.3 to 85.3 %, seeds 3, 4)"
    [sentence] = paper_sentences(comparison)
    wide = -pair.if_wrong.difference.new_seeds_and_problems.interval.low
    assert f"no difference of more than {points(rounded_up(wide))}" in sentence
    assert f"[$-${100 * wide:.1f}, " in results_latex(comparison)
    assert "Runs of atr: 2 of 5 (5.3 to 85.3 %) diverged and 0 of 5 (0.0 to 52.2 %) collapsed; " in sentence
    tables = tables_of(comparison)
    (differences,) = [rows for title, rows in tables.items() if title.startswith("Mean@4 on exam")]
    assert any(f"[−{100 * wide:.1f}, " in cell for cell in differences[0])
    scores = tables["Scores in percent, at each run's last evaluation"]
    assert scores[1][-2:] == ["2 of 5 (5.3 to 85.3 %)", "0 of 5 (0.0 to 52.2 %)"]


def test_a_verdict_that_holds_in_only_one_reading_depends_on_diverged_runs(study):
    for seed in range(5):
        study("grpo", seed, 1)
        diverges = {"state": RunState.FAILED, "cause": "diverged", "diverged_to": 3} if seed == 4 else {}
        study("atr", seed, 3, **diverges)
    comparison = study.compare()
    assert _verdict(comparison).kind == "depends_on_diverged"
    assert paper_sentences(comparison)[0].startswith("Nothing can be written")


def test_a_run_that_diverged_without_an_evaluation_is_always_wrong(study):
    for seed in range(3):
        study("grpo", seed, 2)
        study("atr", seed, 2)
    study("grpo", 3, 2)
    study("atr", 3, 2, state=RunState.FAILED, cause="diverged")
    comparison = study.compare()
    assert comparison.outcomes[EXAM]["atr"].num_correct_SP[3].sum() == 0
    assert comparison.arms[1].diverged.seeds == comparison.arms[1].collapsed.seeds == (3,)


@pytest.mark.parametrize("at", ["steps", "tokens", "wall_clock"])
def test_a_diverged_run_counts_at_equal_cost_but_does_not_set_the_budget(study, at):
    for seed in range(3):
        study("grpo", seed, 2)
        study("atr", seed, 2)
    study("grpo", 3, 2)
    study("atr", 3, 2, state=RunState.FAILED, cause="diverged", diverged_to=1)
    comparison = study.compare(at=at)
    assert comparison.arms[1].arm.seeds == (0, 1, 2, 3)
    assert comparison.arms[0].steps == (4.0, 4.0)


@pytest.mark.parametrize("at", ["steps", "tokens", "wall_clock"])
def test_runs_that_all_diverged_are_compared_at_their_last_evaluations(study, at):
    for seed in range(2):
        for algorithm in ("grpo", "atr"):
            study(algorithm, seed, 2, state=RunState.FAILED, cause="diverged", diverged_to=1)
    assert set(study.compare(at=at).steps[EXAM].values()) == {3}


def test_answers_that_no_run_has_are_an_error_in_one_line(study):
    run = study("atr", 0, 2)
    with pytest.raises(RunFolderError, match="no compared run was evaluated on exam; add runs"):
        answers_used([run], EXAM, {})


def test_whether_a_diverged_run_without_any_evaluation_collapsed_is_unknown(make_run):
    run = make_run("atr", 0, {}, until=2, state=RunState.FAILED)
    status = json.loads(run.status_file.read_text())
    run.status_file.write_text(json.dumps({**status, "cause": "diverged"}))
    assert collapses_of(read_overview(run)) is None


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        (RunState.RUNNING, "preliminary", "is still running at step 2 of 4"),
        (RunState.INTERRUPTED, "preliminary", "was interrupted at step 2 of 4"),
        (RunState.FAILED, "incomplete", "failed at step 2 of 4"),
        (RunState.KILLED, "incomplete", "was killed at step 2 of 4"),
        (RunState.PRUNED, "incomplete", "was pruned at step 2 of 4"),
    ],
)
def test_a_missing_run_withholds_the_verdict_until_it_is_left_out_with_a_reason(study, state, kind, said):
    for seed in range(4):
        study("grpo", seed, 1)
        study("atr", seed, 3)
        study("clip_higher", seed, 3)
    missing = study("atr", 4, state=state, cause="error")
    comparison = study.compare()
    assert _verdict(comparison).kind == kind
    assert f"{missing.name} {said}" in _verdict(comparison).words
    assert "ruled out" not in _verdict(comparison).words
    assert _verdict(comparison, "clip_higher").kind == "better", "only the arm of the run is concerned"
    assert paper_sentences(comparison)[0].startswith("Nothing can be written about")
    named = study.compare(leave_out={missing.path.name[-4:]: "its node lost power"})
    assert _verdict(named).kind == "better"
    assert f"{missing.name} (by request: its node lost power)" in paper_sentences(named)[0]


def test_a_missing_run_is_superseded_by_a_finished_one_of_its_arm_and_seed(study):
    for seed in range(4):
        study("grpo", seed, 1)
        study("atr", seed, 3, state=RunState.INTERRUPTED)
        study("atr", seed, 3)
    assert _verdict(study.compare()).kind == "better"


def test_an_evaluation_supersedes_a_missing_one_of_its_arm_and_seed(study):
    def evaluates(folder, seed):
        config = json.loads(folder.config_file.read_text())
        checkpoint = {"run": f"a/{seed}", "step": 4, "seed": seed}
        own = {"kind": "evaluation", "checkpoint": checkpoint, "evaluation": config.pop("evaluation")}
        folder.write_config({**own, "model": {"kind": "hub", "source": "x"}, "not_read": config})

    for seed in range(4):
        for algorithm, correct in (("grpo", 1), ("atr", 3)):
            evaluates(study(algorithm, seed, correct, state=RunState.INTERRUPTED), seed)
            evaluates(study(algorithm, seed, correct), seed)
    assert _verdict(study.compare()).kind == "better"


def test_failed_starts_and_archived_runs_are_not_missing(study):
    for seed in range(4):
        study("grpo", seed, 1)
        study("atr", seed, 3)
    archived = study("atr", 4, state=RunState.INTERRUPTED)
    (archived.path / "annotations.json").write_text(json.dumps({"is_archived": True}))
    failed = study("ppo", 5, state=RunState.FAILED)
    status = json.loads(failed.status_file.read_text())
    failed.status_file.write_text(
        json.dumps({**status, "state": "failed_start", "error": "there is no model"})
    )
    comparison = study.compare()
    assert _verdict(comparison).kind == "better"
    assert [one.arm.name for one in comparison.arms] == ["grpo", "atr"]
    reasons = {one.name: one.reason for one in comparison.left_out}
    assert reasons == {archived.name: "is archived", failed.name: "failed to start: there is no model"}


def test_leave_out_needs_the_name_of_one_run_and_a_reason(study, capsys):
    run = study("grpo", 0, 1)
    study("atr", 0, 1)
    with pytest.raises(ConfigError, match="--leave-out 'nothing' matches none of the compared runs"):
        study.compare(leave_out={"nothing": "why"})
    assert main(["compare", "study", "--runs-dir", str(run.path.parents[1]), "--leave-out", "x="]) == 2
    assert "--leave-out: expected RUN=REASON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("correct", "said"), [(0, "no answer of any arm is correct"), (4, "every answer of every arm is correct")]
)
def test_arms_whose_answers_are_all_wrong_or_all_correct_get_no_sentence_for_a_paper(make_run, correct, said):
    counts = {(EXAM, 4): [correct] * NUM_PROBLEMS}
    runs = [make_run(algorithm, seed, counts) for seed in range(3) for algorithm in ("grpo", "atr")]
    comparison = compare_runs(runs, baseline="grpo")
    assert answer_of(comparison)[0].endswith(" 0.0 points over atr (uninformative)")
    assert answer_of(comparison)[1].startswith(f"atr against grpo: {said}, so these answers cannot show")
    assert "ruled out" not in str(answer_of(comparison))
    assert paper_sentences(comparison)[0].startswith("Nothing can be written about atr and grpo as methods")


def test_an_experiment_that_is_left_out_as_a_whole_is_the_first_alert(make_run, capsys, tmp_path):
    for seed in range(3):
        for algorithm in ("grpo", "atr"):
            make_run(algorithm, seed, {(EXAM, 4): _answers(2, seed)})
        make_run("grpo", seed, {("other-test", 4): [2] * NUM_PROBLEMS}, experiment="others", label="other")
    runs_dir = str(tmp_path / "runs")
    assert (
        main(["compare", "study", "others", "--runs-dir", runs_dir, "--no-files", "--benchmark", EXAM]) == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert f"experiment others left out: no score on {EXAM} " in said.partition("atr against grpo: ")[0]
    assert "only on other-test" not in said


@pytest.fixture
def recorded(tmp_path):
    """The runs that commit 6991847 recorded, by algorithm and seed."""
    shutil.copytree(RECORDED / "recorded", tmp_path / "recorded")
    return {tuple(path.name.split("-")[2:4]): path for path in (tmp_path / "recorded").iterdir()}


def test_runs_of_an_earlier_version_follow_the_rules_for_old_records(recorded, capsys):
    runs_dir = str(recorded["atr", "s2"].parents[1])
    assert main(["compare", "recorded", "--runs-dir", runs_dir, "--no-files"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "atr against grpo: incomplete: " in said
    for run in (("grpo", "s4"), ("grpo", "s6"), ("atr", "s3"), ("atr", "s4")):
        assert f"recorded/{recorded[run].name} " in said.partition("estimated")[0]
    assert "1 of 3 (0.8 to 90.6 %)" in said, "seed 2 of atr diverged and was evaluated after its last step"
    assert f"{recorded['grpo', 's8'].name} (failed to start: the warm-up's loss is nan" in said
    assert said.count("recorded by an earlier version") == 1


def test_a_diverged_run_of_an_earlier_version_needs_an_evaluation_after_its_last_step(recorded):
    from atrium.compare.counted_runs import counted_runs
    from atrium.compare.outcomes import At
    from atrium.runs.run_folder import RunFolder

    folders = [RunFolder(path) for path in sorted(recorded.values())]
    found = counted_runs(folders, [], At.LAST, can_compare=lambda some: True)
    assert [run.folder.path for run in found.runs if run.has_diverged] == [recorded["atr", "s2"]]
    kinds = {run.folder.path: run.kind for run in found.missing}
    assert kinds[recorded["atr", "s3"]] == "incomplete"
    assert kinds[recorded["atr", "s4"]] == "preliminary"


def test_an_unfinished_arm_does_not_affect_verdicts_about_others(study):
    for seed in range(4):
        study("grpo", seed, 1)
        study("atr", seed, 3)
    leave(RunFolderWriter(study("reinforce", 0, state=RunState.RUNNING)), RunState.RUNNING)
    comparison = study.compare()
    assert _verdict(comparison).kind == "better"
    assert any("reinforce" in line and "is still running" in line for line in notes_of(comparison))
