"""The document of a sweep from its snapshot: ranks, figures, what went wrong, damaged records."""

from __future__ import annotations

import pytest

from atrium.document.document import Estimate
from atrium.sweep.snapshot_document import snapshot_document, snapshot_trials


def trial(number, mean, *, state="complete", settings=None, curve=(), runs=("a", "b")):
    seeds = [
        {"seed": seed, "run": run, "mean_at_k": mean + 0.02 * seed, "pass_at_k": 0.9, "curve": list(curve)}
        for seed, run in enumerate(runs)
    ]
    return {
        "stage": "search",
        "number": number,
        "state": state,
        "labels": [f"arm {number}"],
        "settings": settings or {"divergence.delta": 0.1 * (number + 1)},
        "window": [0.5, None],
        "values": [mean] if state == "complete" else None,
        "reason": None,
        "seeds": seeds,
    }


def document_of(trials, *, key="divergence.delta", score="mean_at_k", direction="maximize", **more):
    state = {"question": "Which?", "objectives": [{"metric": "mean_at_k", "direction": direction}]}
    found = snapshot_trials({**state, "trials": trials})
    given = {"definition": {}, "report": {}, "collapses": {}} | more
    return snapshot_document({**state, "trials": trials}, trials=found, key=key, score=score, **given)


def figures_of(document):
    return {figure.key: figure for figure in document.sections[0].figures}


def table_of(document):
    return document.sections[0].tables[-1]


@pytest.mark.parametrize(("direction", "order"), [("maximize", [1, 0, 2]), ("minimize", [0, 1, 2])])
def test_complete_trials_are_ranked_by_the_objective_and_stand_before_others(direction, order):
    trials = [trial(0, 0.2), trial(1, 0.5), trial(2, 0.9, state="pruned")]
    rows = table_of(document_of(trials, direction=direction)).rows
    assert [row.cells[0] for row in rows] == [f"arm {number}" for number in order]
    assert [row.cells[1] for row in rows] == [1, 2, None]


def test_scores_are_means_over_seeds_with_their_interval_and_windows_may_be_open():
    cells = table_of(document_of([trial(0, 0.5), trial(1, 0.2)])).rows[0].cells
    assert cells[4] == Estimate(None, (0.5, float("inf")), "ratio")
    assert cells[5].value == pytest.approx(0.51)
    assert cells[5].interval[0] < 0.51 < cells[5].interval[1]
    assert cells[6] == Estimate(0.9, None, "share"), "seeds that agree are no certainty"


def test_a_zero_score_is_a_score():
    cells = table_of(document_of([trial(0, 0.0, runs=("a",)), trial(1, 0.2)])).rows[1].cells
    assert cells[5] == Estimate(0.0, None, "share")


def test_the_score_stands_against_the_chosen_setting():
    trials = [trial(0, 0.3), trial(1, 0.5), trial(2, 0.4, state="failed")]
    complete, others = figures_of(document_of(trials))["score"].series
    assert complete.x == (0.1, 0.2)
    assert complete.is_line
    assert others.is_faint
    assert not others.is_line


def test_words_are_places_of_the_axis():
    trials = [
        trial(number, 0.3, settings={"optimizer": name}) for number, name in enumerate(["adam", "muon"])
    ]
    figure = figures_of(document_of(trials, key="optimizer"))["score"]
    assert figure.x.labels == ("adam", "muon")
    assert not figure.series[0].is_line


def test_learning_curves_are_means_where_all_seeds_have_a_point():
    trials = [trial(0, 0.3, curve=[[0, 0.1, 0.2], [4, 0.3, 0.6]])]
    trials[0]["seeds"][0]["curve"].append([8, 0.9, 0.9])
    figure = figures_of(document_of(trials, score="pass_at_k"))["learning"]
    assert figure.series[0].x == (0.0, 4.0)
    assert figure.series[0].y == (0.2, 0.6)


def test_two_numeric_settings_stand_together_in_thirds_by_the_score():
    trials = [trial(n, 0.1 * n, settings={"a": n + 1.0, "b": 10.0**-n}) for n in range(3)]
    figure = figures_of(document_of(trials, key="b"))["pair"]
    assert (figure.x.title, figure.x.scale, figure.y.title) == ("b", "log", "a")
    assert [one.y for one in figure.series] == [(3.0,), (2.0,), (1.0,)]
    assert "pair" not in figures_of(document_of(trials[:2], key="b"))


def test_collapses_are_alerts_and_the_report_is_quoted():
    report = {
        "sentences": ["arm 0 is best"],
        "contrasts": {
            "outcomes": {"reward": "mean reward"},
            "columns": ["contrast", "seen"],
            "rows": [{"outcome": "reward", "cells": ["x", "+1"]}],
        },
    }
    collapses = {"a": ["entropy gone"]}
    document = document_of([trial(0, 0.3), trial(1, 0.4)], report=report, collapses=collapses)
    assert [one.text for one in document.alerts] == ["entropy gone in 2 of 4 runs: arm 1, arm 0"]
    assert [one.text for one in document.answer] == ["arm 0 is best"]
    assert document.sections[0].tables[0].title == "reward: mean reward"


def test_a_sweep_without_a_trial_has_an_empty_table():
    document = snapshot_document({}, {}, {}, [], key="", score="mean_at_k", collapses={})
    assert document.sections[0].figures == ()
    assert document.sections[0].tables[-1].rows == ()


@pytest.mark.parametrize(
    ("metric", "where"), [("mean_at_k", "on validation problems"), ("entropy", "during training")]
)
def test_an_objective_is_said_to_be_measured_where_it_is(metric, where):
    state = {"objectives": [{"metric": metric, "direction": "maximize"}]}
    document = snapshot_document(state, {}, {}, [], key="", score="mean_at_k", collapses={})
    assert document.subtitle == f"maximize {metric} {where}"


@pytest.mark.parametrize(
    "damage",
    [
        *({"window": window} for window in ([1], 5, ["a", "b"])),
        *({name: 5} for name in ("values", "labels", "settings", "seeds")),
        *({"seeds": [{"curve": curve}]} for curve in (5, [3], [["a", 1, 1], [1]])),
    ],
)
def test_damaged_records_of_a_trial_are_left_out(damage):
    assert len(table_of(document_of([trial(0, 0.3) | damage, trial(1, 0.4)])).rows) == 2


@pytest.mark.parametrize(
    "contrasts", [{}, {"outcomes": 1}, {"outcomes": {"x": "y"}}, {"outcomes": {"x": "y"}, "rows": [{}, 1]}]
)
def test_damaged_contrasts_are_left_out(contrasts):
    document = document_of([trial(0, 0.3)], report={"contrasts": contrasts})
    assert all(not table.rows for table in document.sections[0].tables[:-1])
