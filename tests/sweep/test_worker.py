"""Workers with scripted runs: every trial ends once, whatever happens to those who work on it."""

from __future__ import annotations

import itertools

import pytest
from optuna.trial import TrialState
from tests.sweep.conftest import ScriptedRuns, new_worker

from atrium.base.errors import ConfigError, Interrupted
from atrium.sweep.plan import Stage
from atrium.sweep.setup import prepare


def by_delta(config):
    """Best near delta = 0.02, a little better for odd seeds."""
    delta = config.divergence.delta
    return max(0.0, 0.8 - abs(delta - 0.02) * 5 + 0.01 * (config.seed % 2))


def ends(studies, stage=Stage.SEARCH):
    return [trial.state.name for trial in studies.trials(stage)]


def values(studies, stage=Stage.SEARCH):
    return [trial.values for trial in studies.trials(stage)]


def test_a_trials_value_is_the_mean_over_its_seeds_with_a_standard_error(sweep, define):
    runs = ScriptedRuns(by_delta)
    studies = sweep(define(seeds=[0, 1, 2, 3]), runs)
    trial = studies.trials(Stage.SEARCH)[1]
    assert trial.values == pytest.approx([0.805])
    assert trial.standard_errors == pytest.approx([0.01 / 12**0.5])
    assert sorted(runs.calls) == sorted(itertools.product(range(3), range(4)))


def test_two_workers_share_a_sweep_and_run_each_seed_once(storage, define):
    definition = define(
        space={"divergence.delta": {"low": 0.002, "high": 0.2, "log": True, "num": 6}}, trials=6
    )
    prepare(storage, definition)
    runs = ScriptedRuns(by_delta)
    second = new_worker(storage, definition, runs)

    def execute(run, watch):
        if len(runs.calls) < 6:
            assert second._work_on_something()  # while the first is at work, the second does a whole trial
        return runs(run, watch)

    worker = new_worker(storage, definition, execute)
    second._claims.beat()
    worker.work()
    studies = worker._studies
    assert ends(studies) == ["COMPLETE"] * 6
    assert sorted(runs.calls) == sorted(itertools.product(range(6), (0, 1)))


def test_a_worker_that_fails_leaves_what_it_did_to_the_next(sweep, define, journal):
    undisturbed = values(sweep(define(name="other"), ScriptedRuns(by_delta)))
    definition = define()
    runs = ScriptedRuns(by_delta, fail_at=(2, 4, 5))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            sweep(definition, runs)
    studies = sweep(definition, runs)
    assert values(studies) == undisturbed
    counted = {call: runs.calls.count(call) for call in runs.calls}
    assert sum(counted.values()) == 6 + 3, "only what had failed was run again"


def test_a_trial_on_which_workers_die_without_progress_is_given_up(sweep, define):
    definition = define(trials=1, space={"divergence.delta": {"choices": [0.1]}}, max_attempts=2)
    runs = ScriptedRuns(by_delta, fail_at=range(1, 9))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            sweep(definition, runs)
    [trial] = sweep(definition, runs).trials(Stage.SEARCH)
    assert trial.state is TrialState.FAIL
    assert trial.reason == "2 workers died on this trial without any progress"


def test_stopping_is_clean_and_the_same_sweep_goes_on(journal, define):
    definition = define()
    prepare(journal, definition)
    stops = iter([False] * 9)
    runs = ScriptedRuns(by_delta)
    with pytest.raises(Interrupted):
        new_worker(journal, definition, runs, should_stop=lambda: next(stops, True)).work()
    before = len(runs.calls)
    assert before < 6
    worker = new_worker(journal, definition, runs)
    worker.work()
    assert ends(worker._studies) == ["COMPLETE"] * 3


def test_a_worse_trial_is_pruned_between_its_seeds(sweep, define):
    definition = define(
        space={"divergence.delta": {"choices": [0.02, 0.2]}},
        trials=2,
        pruner={"between_seeds": "wilcoxon", "collapse_steps": None},
    )
    runs = ScriptedRuns(by_delta)
    studies = sweep(definition, runs)
    assert ends(studies) == ["COMPLETE", "PRUNED"]
    assert runs.calls == [(0, 0), (0, 1), (1, 0)]
    assert (
        studies.trials(Stage.SEARCH)[1].reason
        == "worse than trial 0 in a test over problems, 1 of 2 seeds not run"
    )


@pytest.mark.parametrize(
    "curve",
    [
        "successive_halving",
        pytest.param("hyperband", marks=pytest.mark.full),
        pytest.param("median", marks=pytest.mark.full),
    ],
)
def test_a_curve_that_falls_behind_stops_within_the_first_seed(sweep, define, curve):
    deltas = [0.02, 0.021, 0.022, 0.023, 0.15, 0.16, 0.17]
    definition = define(
        space={"divergence.delta": {"choices": deltas}},
        trials=7,
        pruner={"curve": curve, "min_steps": 1, "collapse_steps": None},
    )
    runs = ScriptedRuns(by_delta)
    studies = sweep(definition, runs)
    trials = studies.trials(Stage.SEARCH)
    assert trials[0].state is TrialState.COMPLETE
    pruned = [trial for trial in trials if trial.state is TrialState.PRUNED]
    assert pruned
    for trial in pruned:
        assert "validation curve is among the worst at step" in trial.reason
        assert list(trial.results) == [0]
        assert trial.results[0].step < 4


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (
            {"objective/entropy": 1e-9, "rollout/completion_length": 20.0},
            "collapsed: entropy gone, steps 1 to 2: a completion has 2.00e-08 nats",
        ),
        (
            {"rollout/no_signal_frac": 1.0},
            "collapsed: no signal, steps 1 to 2: in 100.0 % of the groups all rewards were equal",
        ),
        ({"rollout/reward": float("nan")}, "divergence, step 1: rollout/reward is not a finite number"),
    ],
)
def test_a_run_that_collapses_ends_its_trial(sweep, define, metrics, said):
    runs = ScriptedRuns(by_delta, metrics=lambda config, step: metrics if config.seed == 1 else {})
    studies = sweep(define(pruner={"collapse_steps": 2}), runs)
    assert ends(studies) == ["PRUNED"] * 3
    for trial in studies.trials(Stage.SEARCH):
        assert said in trial.reason
        assert [result.state for result in trial.results.values()] == ["finished", "pruned"]


def test_a_task_that_is_solved_is_no_collapse(sweep, define):
    solved = {
        "rollout/no_signal_frac": 1.0,
        "rollout/correct_frac": 1.0,
        "rollout/completion_length": 20.0,
        "objective/entropy": 1e-9,
    }
    runs = ScriptedRuns(by_delta, metrics=lambda config, step: solved)
    assert ends(sweep(define(pruner={"collapse_steps": 2}), runs)) == ["COMPLETE"] * 3


def test_a_setting_that_cannot_be_run_fails_alone(sweep, define):
    def score(config):
        if config.divergence.delta > 0.1:
            raise ConfigError("this one cannot be run")
        return by_delta(config)

    assert ends(sweep(define(), ScriptedRuns(score))) == ["COMPLETE", "COMPLETE", "FAIL"]


def test_what_a_sampler_chooses_twice_is_run_once(sweep, define):
    definition = define(
        space={"divergence.delta": {"choices": [0.02, 0.2]}},
        sampler={"kind": "tpe", "seed": 1},
        trials=6,
    )
    runs = ScriptedRuns(by_delta)
    studies = sweep(definition, runs)
    trials = studies.trials(Stage.SEARCH)
    assert ends(studies) == ["COMPLETE"] * 6
    copies = [trial for trial in trials if trial.coincides_with is not None]
    assert len(copies) == 4
    assert len(runs.calls) == 4
    for trial in copies:
        assert trial.values == trials[trial.coincides_with].values


@pytest.mark.parametrize("kind", ["tpe", pytest.param("gp", marks=pytest.mark.full)])
def test_samplers_that_look_at_results_get_a_trials_own_setting_back_on_resume(sweep, define, kind):
    definition = define(
        space={
            "divergence.delta": {"low": 0.002, "high": 0.2, "log": True},
            "optimizer.learning_rate": {"low": 1e-4, "high": 1e-3, "log": True},
        },
        sampler={"kind": kind},
        trials=4,
    )
    seen = []

    def score(config):
        seen.append((config.divergence.delta, config.optimizer.learning_rate, config.seed))
        return by_delta(config)

    runs = ScriptedRuns(score, fail_at=(4,))
    with pytest.raises(RuntimeError):
        sweep(definition, runs)
    studies = sweep(definition, runs)
    assert ends(studies) == ["COMPLETE"] * 4
    assert len({one[:2] for one in seen}) == 4
    assert len(seen) == len(set(seen)) == 8


def test_winner_and_tuned_baseline_meet_on_fresh_seeds(sweep, define):
    base = [line.replace("atr", "grpo") for line in define().base]
    space = {"divergence.delta": {"choices": [0.1, 0.3]}}
    definition = define(baseline={"base": base, "space": space}, final={"seeds": [70, 71]})
    runs = ScriptedRuns(by_delta)
    studies = sweep(definition, runs)
    final = studies.trials(Stage.FINAL)
    assert [(trial.planned.labels, trial.seeds) for trial in final] == [
        ((role, label), (seed,))
        for seed in (70, 71)
        for role, label in (("winner", "delta=0.02"), ("baseline", "delta=0.1"))
    ]
    assert ends(studies, Stage.FINAL) == ["COMPLETE"] * 4


def test_a_winner_that_is_the_baseline_is_not_compared_with_itself(sweep, define):
    definition = define(
        space={"divergence": {"choices": ["ratio"]}, "divergence.delta": {"choices": [0.2]}},
        trials=1,
        baseline={"base": [*define().base, "divergence=chi2", "divergence.delta=0.02"]},
        final={"seeds": [70, 71]},
    )
    studies = sweep(definition, ScriptedRuns(lambda config: 0.5))
    assert studies.num_planned(Stage.FINAL) == 0


def test_a_sweep_that_began_with_other_settings_is_refused(journal, define):
    prepare(journal, define())
    with pytest.raises(ConfigError, match="seeds must keep the value that sweep"):
        prepare(journal, define(seeds=[0, 1, 2]))


def test_more_trials_may_be_asked_for_where_a_plan_can_grow(sweep, define):
    runs = ScriptedRuns(by_delta)
    first = values(sweep(define(sampler={"kind": "quasi_random"}, trials=2), runs))
    second = values(sweep(define(sampler={"kind": "quasi_random"}, trials=4), runs))
    assert second[:2] == first
    assert len(runs.calls) == 8
    with pytest.raises(ConfigError, match="use 4 or more"):
        sweep(define(sampler={"kind": "quasi_random"}, trials=3), runs)
