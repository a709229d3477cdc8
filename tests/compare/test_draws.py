"""What a comparison says about the random draws that evaluations were sampled with."""

from __future__ import annotations

from tests.compare.documents import alerts_of

from atrium.compare.run_comparison import compare_runs

COUNTS = {("exam", 4): [1, 2, 3]}


def notes_of(make_run, **draws):
    """The notes on a comparison of two seeds of `grpo` and `atr`; `draws` by arm."""
    runs = [make_run(name, seed, COUNTS, draws=draws[name]) for seed in (0, 1) for name in draws]
    return [note for note in compare_runs(runs).notes if "draws" in note]


def test_equal_seeds_with_equal_draws_give_no_note(make_run):
    assert notes_of(make_run, grpo="keyed", atr="keyed") == []


def test_records_with_shared_draws_are_distinguished_from_others(make_run):
    [unpaired] = notes_of(make_run, grpo="shared", atr="keyed")
    assert unpaired.startswith(
        "grpo and atr: equal seeds were evaluated with different random draws (seed 0: "
    )
    assert "evaluation.seed=0 for all seeds; evaluation.seed=0 with the run's seed 0" in unpaired


def test_an_alert_calls_intervals_over_seeds_with_shared_draws_too_narrow(make_run):
    runs = [make_run(name, seed, COUNTS, draws="shared") for seed in (0, 1) for name in ("grpo", "atr")]
    comparison = compare_runs(runs)
    assert comparison.shared_draws == ("grpo", "atr")
    details = dict(alerts_of(comparison))
    detail = details["intervals too narrow: shared random draws in grpo, atr"]
    assert detail.startswith("the seeds of grpo, atr were evaluated with the same random draws")


def test_runs_that_sampled_continuously_are_named(make_run):
    runs = [
        make_run(name, seed, COUNTS, rollout={"continuous": name == "atr"})
        for seed in (0, 1)
        for name in ("grpo", "atr")
    ]
    (note,) = [note for note in compare_runs(runs).notes if "continuously" in note]
    assert note == "atr samples continuously: runs with equal seeds train on different answers"
