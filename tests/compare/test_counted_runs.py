"""Which runs a comparison counts: finished ones with the common benchmark; it names all others."""

from __future__ import annotations

import pytest
from tests.compare.documents import alerts_of

from atrium.base.errors import ConfigError, RunFolderError
from atrium.compare.counted_runs import counted_runs
from atrium.compare.outcomes import At
from atrium.compare.run_comparison import compare_runs
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState

WHOLE = {("exam", 0): [1, 0, 0], ("exam", 4): [4, 3, 4]}
BEGUN = {("exam", 0): [1, 0, 0]}


def mean(comparison, arm):
    (found,) = [one for one in comparison.arms if one.arm.name == arm]
    return found.scores["mean"][comparison.headline].value


def evaluated(run, model):
    """Turn the run directory into that of an `atrium evaluate` run of a model that no run has trained."""
    run.write_config(
        {
            "kind": "evaluation",
            "checkpoint": None,
            "model": {"kind": "hub", "source": f"models/{model}"},
            "not_read": {"seed": 0, "num_steps": 80, "algorithm": {"name": "atr"}},
        }
    )
    return run


@pytest.mark.parametrize(
    "state",
    [RunState.FAILED, RunState.INTERRUPTED, RunState.PRUNED, RunState.KILLED, RunState.RUNNING],
)
def test_a_run_that_did_not_end_as_planned_is_left_out_and_named(make_run, state):
    runs = [make_run(name, seed, WHOLE) for name in ("grpo", "atr") for seed in (0, 1)]
    stopped = make_run("atr", 2, BEGUN, state=state, until=2)
    found = compare_runs([*runs, stopped])
    assert mean(found, "atr") == mean(found, "grpo") == 11 / 12
    (alert,) = [text for text, detail in alerts_of(found) if f"{stopped.name} " in detail]
    assert alert == "runs without a result: 1 of atr"
    (detail,) = [detail for text, detail in alerts_of(found) if text == alert]
    assert "at step 2 of 4" in detail


def test_a_failed_rerun_does_not_replace_a_finished_run(make_run):
    runs = [make_run(name, 0, WHOLE) for name in ("grpo", "atr")]
    rerun = make_run("atr", 0, BEGUN, state=RunState.FAILED, until=1)
    assert mean(compare_runs([*runs, rerun]), "atr") == 11 / 12


def test_a_run_killed_after_its_last_evaluation_counts_unless_another_finished(make_run):
    grpo = make_run("grpo", 0, WHOLE)
    at_end = make_run("atr", 0, WHOLE, state=RunState.KILLED)
    assert mean(compare_runs([grpo, at_end]), "atr") == 11 / 12
    finished = make_run("atr", 0, WHOLE | {("exam", 4): [4, 4, 4]})
    later = make_run("atr", 0, WHOLE, state=RunState.KILLED)
    assert mean(compare_runs([grpo, finished, later]), "atr") == 1.0


def test_a_run_killed_before_its_last_test_evaluation_does_not_change_the_benchmark(make_run):
    whole = WHOLE | {("exam-validation", 4): [2, 2]}
    runs = [make_run(name, seed, whole) for name in ("grpo", "atr") for seed in (0, 1)]
    killed = make_run("atr", 2, BEGUN | {("exam-validation", 4): [2, 2]}, state=RunState.KILLED)
    found = compare_runs([*runs, killed])
    assert found.benchmarks == ("exam",)
    assert mean(found, "atr") == 11 / 12
    assert [one.reason for one in found.left_out] == ["has no score on exam, only on exam-validation"]


def test_a_comparison_at_equal_tokens_never_uses_the_evaluation_before_training(make_run):
    cheap, dear = make_run("grpo", 0, WHOLE), make_run("atr", 0, WHOLE, step_tokens=1000)
    found = compare_runs([cheap, dear], at=At.TOKENS)
    assert mean(found, "atr") == 11 / 12
    assert "differ in tokens" in found.notes[0]


def test_runs_that_share_only_step_0_are_not_compared_at_equal_steps(make_run):
    runs = [
        make_run("grpo", 0, BEGUN | {("exam", 3): [1, 1, 1]}, num_steps=3),
        make_run("atr", 0, WHOLE),
    ]
    with pytest.raises(RunFolderError, match="no step after 0"):
        compare_runs(runs, at=At.STEPS)


def test_the_score_of_an_untrained_model_is_its_outcome(make_run):
    base = evaluated(make_run("grpo", 0, {("exam", 0): [1, 1, 1]}), "base")
    assert mean(compare_runs([base, make_run("atr", 0, WHOLE)]), "base") == 0.25


def test_one_run_or_evaluation_without_the_common_benchmark_is_left_out(make_run):
    runs = [make_run(name, seed, WHOLE) for name in ("grpo", "atr") for seed in (0, 1)]
    without = make_run("atr", 2, {("other", 4): [1, 1]})
    elsewhere = evaluated(make_run("grpo", 0, {("olympiad", 0): [1]}), "base")
    found = compare_runs([without, elsewhere, *runs])
    assert found.benchmarks == ("exam",)
    assert {one.name: one.reason for one in found.left_out} == {
        without.name: "has no score on exam, only on other",
        elsewhere.name: "has no score on exam, only on olympiad",
    }
    assert {one.cause for one in found.left_out} == {"no_score"}
    assert {one.lacking for one in found.left_out} == {("exam",)}
    named = compare_runs([without, elsewhere, *runs], benchmarks=["exam"])
    assert named.left_out == found.left_out


def test_an_evaluation_of_an_untrained_model_is_left_out_at_equal_tokens(make_run):
    runs = [make_run("grpo", 0, WHOLE), make_run("atr", 0, WHOLE)]
    base = evaluated(make_run("grpo", 0, {("exam", 0): [1, 1, 1]}, num_steps=0), "base")
    found = compare_runs([*runs, base], at=At.TOKENS)
    assert [one.reason for one in found.left_out] == [
        "did not record the values for a comparison at equal generated tokens"
    ]
    assert len(compare_runs([*runs, base]).arms) == 3


def test_the_benchmark_that_most_runs_of_two_arms_answered_is_compared(make_run):
    both = {("one", 4): [1, 2], ("two", 4): [1, 2]}
    runs = [make_run("grpo", 0, both), make_run("atr", 0, both), make_run("atr", 1, {("two", 4): [1, 2]})]
    assert compare_runs(runs).benchmarks == ("two",)
    apart = [
        make_run(name, seed, {(f"test-{name}", 4): [1, 2], ("exam-validation", 4): [2, 2]})
        for name in ("grpo", "atr")
        for seed in (0, 1)
    ]
    assert compare_runs(apart).benchmarks == ("exam-validation",)


def test_the_error_for_too_few_arms_names_excluded_runs_with_reasons(make_run, tmp_path):
    whole, failed = make_run("grpo", 0, WHOLE), make_run("atr", 0, BEGUN, state=RunState.FAILED, until=1)
    (tmp_path / "runs" / "study" / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"two arms.*left out: .*-atr-.*failed at step 1 of 4: as the test"):
        compare_runs([whole, failed])
    with pytest.raises(RunFolderError, match=r"none of these .* \(the folder is empty\)"):
        compare_runs([failed, RunFolder(tmp_path / "runs" / "study" / "empty")])
    with pytest.raises(ConfigError, match=r"benchmark aime: .* use one of exam$"):
        compare_runs([whole], benchmarks=["aime"])


def test_an_error_without_any_excluded_run_still_says_what_to_do():
    with pytest.raises(RunFolderError, match="can be compared; none was evaluated; choose other runs"):
        counted_runs([], (), At.LAST, can_compare=lambda some: True)
