"""The verdict on fresh seeds counts every run, whatever became of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from tests.sweep.conftest import ScriptedRuns, new_worker

from atrium.assemble.sweep_report import report
from atrium.base.errors import ConfigError
from atrium.config.messages import validate
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.setup import prepare
from atrium.sweep.storage import SweepStorage, storage_url

BASE = ["experiment=stress", "num_steps=4", "optimizer.num_warmup_steps=1"]
SEEDS = [70, 71, 72, 73, 74]


class FinalRuns(ScriptedRuns):
    """Scripted runs, of which those of the baseline on some fresh seeds are changed as asked."""

    def __init__(self, *, seeds, change, baseline=0.79, **settings):
        self._seeds, self._change = seeds, change
        super().__init__(lambda config: baseline if is_baseline(config) else 0.8, **settings)

    def __call__(self, run, watch):
        result = super().__call__(run, watch)
        if run.label["stage"] == "final" and is_baseline(run.config) and run.config.seed in self._seeds:
            return self._change(result)
        return result


def is_baseline(config):
    return config.divergence.kind == "ratio"


def scored(result, score):
    """The result with another score on its test problems."""
    exam = dict(result.test["arithmetic-test"])
    exam["mean_at_k"], exam["problem_means"] = score, [score] * len(exam["problem_means"])
    return replace(result, test={"arithmetic-test": exam})


@pytest.fixture
def reported(tmp_path):
    """Run a sweep whose winner meets a fixed baseline on five seeds; its report's content."""

    def run(execute, *, deltas=(0.02,), settings="winner", **pruner):
        runs_dir = tmp_path / "runs"
        data = {
            "name": "small",
            "question": "Who wins?",
            "base": [*BASE, "algorithm=atr"],
            "space": {"divergence.delta": {"choices": list(deltas)}},
            "seeds": [0],
            "trials": len(deltas),
            "pruner": {"collapse_steps": None, **pruner},
            "baseline": {"base": [*BASE, "algorithm=grpo"]},
            "final": {"seeds": SEEDS, "settings": settings},
            "runs_dir": str(runs_dir),
        }
        definition = validate(SweepDefinition, data, "test")
        storage = SweepStorage(storage_url("journal", runs_dir / "sweeps" / "small"))
        prepare(storage, definition)
        new_worker(storage, definition, execute).work()
        report(str(runs_dir), "small")
        return json.loads((runs_dir / "sweeps" / "small" / "report" / "report.json").read_text())

    return run


def test_a_baseline_that_collapses_on_fresh_seeds_is_judged_with_them(reported):
    """Nothing stops a run there, so that what it came to counts."""

    def metrics(config, step):
        stuck = is_baseline(config) and config.seed in (71, 73)
        return {"rollout/no_signal_frac": 1.0, "rollout/correct_frac": 0.0} if stuck else {}

    runs = FinalRuns(seeds=(71, 73), change=lambda result: scored(result, 0.1), metrics=metrics)
    content = reported(runs, collapse_steps=2)
    assert content["verdict"]["seeds"] == SEEDS
    assert contrast(content)["comparison"]["baseline"]["value"] == pytest.approx(0.514, abs=0.02)
    said = " ".join(content["sentences"])
    assert "seeds 70, 71, 72, 73, 74" in said


def contrast(content):
    """What was said of the only candidate."""
    [found] = content["verdict"]["contrasts"]
    return found


def diverged(result):
    exam = dict(result.test["arithmetic-test"], step=4)
    return replace(result, state="diverged", reason="it diverged", step=3, test={"arithmetic-test": exam})


def test_a_verdict_that_rests_on_the_seeds_that_diverged_says_so(reported):
    content = reported(FinalRuns(seeds=SEEDS, change=diverged, baseline=0.82))
    found = contrast(content)
    assert found["kind"] == "depends_on_diverged"
    assert "seed 70 of the baseline (baseline), seed 71 of the baseline" in found["words"]
    assert "counted as always wrong, the winner" in found["words"]
    assert found["comparison_if_wrong"]["baseline"]["value"] == 0.0
    [rate] = [arm["diverged"] for arm in content["verdict"]["arms"] if arm["diverged"]["seeds"]]
    assert rate["seeds"] == SEEDS
    assert rate["interval"] == pytest.approx([0.4782, 1.0], abs=1e-4)


def test_a_verdict_that_holds_either_way_says_both(reported):
    found = contrast(reported(FinalRuns(seeds=SEEDS, change=diverged, baseline=0.3)))
    assert found["kind"] == "better"
    assert "it also holds if the runs that diverged (seed 70 of the baseline" in found["words"]
    assert found["words"].count("is better than the baseline") == 2


def test_a_policy_that_can_answer_nothing_any_more_is_always_wrong(reported):
    def silent(result):
        exam = dict(result.test["arithmetic-test"], step=0)
        return replace(result, state="diverged", reason="it diverged", step=3, test={"arithmetic-test": exam})

    found = contrast(reported(FinalRuns(seeds=SEEDS, change=silent)))
    assert found["comparison"]["baseline"]["value"] == 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "pruned", "reason": "collapsed"}, "(collapsed)"),
        ({"test": {"arithmetic-test": {"step": 0, "mean_at_k": 0.1, "problem_means": [0.1] * 24}}}, ""),
    ],
)
def test_there_is_no_verdict_without_a_seed_that_ended_badly(reported, change, said):
    content = reported(FinalRuns(seeds=(72,), change=lambda result: replace(result, **change)))
    assert content["verdict"] is None
    assert f"no verdict: seed 72 of the baseline has no outcome on test problems {said}" in " ".join(
        content["sentences"]
    )


def test_a_seed_that_failed_for_another_reason_is_left_out_by_name(reported):
    def fail(result):
        raise ConfigError("the disk is full")

    content = reported(FinalRuns(seeds=(72,), change=fail))
    said = " ".join(content["sentences"])
    assert (
        "left out: seed 72 of every arm, because the baseline (baseline) failed on it: the disk is full"
        in said
    )
    assert content["verdict"]["seeds"] == [70, 71, 73, 74]


def test_all_settings_meet_the_baseline_where_all_are_planned_contrasts(reported):
    """The winner's is one of them, and all intervals hold together."""
    runs = FinalRuns(seeds=(), change=None)
    content = reported(runs, deltas=(0.02, 0.1, 0.3), settings="all")
    found = content["verdict"]["contrasts"]
    assert [one["name"] for one in found] == ["the winner (delta=0.02)", "delta=0.1", "delta=0.3"]
    assert content["verdict"]["together"].startswith("3 candidates (")
    assert len(content["verdict"]["arms"]) == 4
    said = " ".join(content["sentences"])
    assert "delta=0.3 against the baseline" in said
    assert "intervals hold simultaneously over 3 candidates" in said


class SourcedRuns(FinalRuns):
    """Final runs on problems of eight sources; the baseline answers those of the first two alone wrongly."""

    def __init__(self, *, has_clusters):
        super().__init__(seeds=(), change=None)
        self._has_clusters = has_clusters

    def __call__(self, run, watch):
        result = super().__call__(run, watch)
        exam = dict(result.test["arithmetic-test"])
        source_P = [place // 3 for place in range(24)]
        is_right_P = [source > 1 or not is_baseline(run.config) for source in source_P]
        exam["problem_means"] = [0.8 * is_right for is_right in is_right_P]
        if self._has_clusters:
            exam["clusters"] = source_P
        return replace(result, test={"arithmetic-test": exam})


def test_problems_of_one_source_count_together(reported, tmp_path):
    alone = reported(SourcedRuns(has_clusters=False))
    shutil.rmtree(tmp_path / "runs")
    together = reported(SourcedRuns(has_clusters=True))
    assert contrast(alone)["kind"] == "better"
    assert contrast(together)["kind"] == "not_distinguishable"
    assert any("; 8 clusters)" in sentence for sentence in together["sentences"])
    assert "estimated difference +20.0 points; not distinguishable; " in " ".join(together["sentences"])
    assert not any("cluster" in sentence for sentence in alone["sentences"])
