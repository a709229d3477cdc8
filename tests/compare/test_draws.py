"""What a comparison says about the random draws that evaluations were sampled with."""

from __future__ import annotations

from atrium.compare.run_comparison import compare_runs

COUNTS = {("exam", 4): [1, 2, 3]}


def notes_of(make_run, **draws):
    """The notes on a comparison of two seeds of `grpo` and `atr`; `draws` by arm."""
    runs = [make_run(name, seed, COUNTS, draws=draws[name]) for seed in (0, 1) for name in draws]
    return [note for note in compare_runs(runs).notes if "draws" in note]


def test_equal_seeds_with_equal_draws_need_no_word(make_run):
    assert notes_of(make_run, grpo="keyed", atr="keyed") == []


def test_records_whose_seeds_shared_their_draws_are_told_from_others(make_run):
    narrow, unpaired = notes_of(make_run, grpo="shared", atr="keyed")
    assert narrow.startswith("grpo: its seeds were evaluated with the same random draws")
    assert unpaired.startswith(
        "grpo and atr: equal seeds were evaluated with different random draws (seed 0: "
    )
    assert "evaluation.seed=0 for all seeds alike; evaluation.seed=0 with the run's seed 0" in unpaired


def test_intervals_over_seeds_that_share_their_draws_are_said_to_be_too_narrow(make_run):
    notes = notes_of(make_run, grpo="shared", atr="shared")
    assert [note.partition(":")[0] for note in notes] == ["grpo", "atr"]
    assert all("too narrow" in note for note in notes)


def test_runs_that_sampled_continuously_are_named(make_run):
    runs = [
        make_run(name, seed, COUNTS, rollout={"continuous": name == "atr"})
        for seed in (0, 1)
        for name in ("grpo", "atr")
    ]
    (note,) = [note for note in compare_runs(runs).notes if "continuously" in note]
    assert note == "atr samples continuously: a run with the same seed trains on other answers"
