"""Methods side by side: seeds pooled, the same bins, equal steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from atrium.runs.status import RunState
from atrium.views.dashboard.run_view_queries import arms_answer
from atrium.views.dashboard.runs_scan import RunsScan


@pytest.fixture
def asked(runs_dir):
    def ask():
        scan = RunsScan(runs_dir)
        scan.scan()
        return arms_answer(SimpleNamespace(scan=scan), list(scan.entries))

    return ask


def test_shares_are_of_the_tokens_of_a_sign_and_bins_are_shared(asked):
    answer = asked()
    assert [(arm["name"], arm["place"], len(arm["runs"])) for arm in answer["arms"]] == [
        ("atr", 0, 2),
        ("grpo", 1, 2),
    ]
    assert answer["until"] == 8
    for arm in answer["arms"]:
        assert len(arm["shares"]["positive"]) == len(answer["edges"]) - 1
        assert sum(arm["shares"]["positive"]) == pytest.approx(1.0, abs=1e-4)
        assert sum(arm["shares"]["negative"]) == pytest.approx(1.0, abs=1e-4)
    assert answer["arms"][0]["window"][1] == pytest.approx(1.23, abs=0.01)


def test_no_single_run_shortens_a_method(asked, runs_dir, make_run):
    make_run(runs_dir, "atr", 5, until=3, state=RunState.INTERRUPTED)
    odd = make_run(runs_dir, "grpo", 7, num_steps=2)
    none = make_run(runs_dir, "grpo", 6, until=0, state=RunState.FAILED)
    answer = asked()
    assert answer["until"] == 8
    assert [(arm["name"], len(arm["runs"])) for arm in answer["arms"]] == [("atr", 3), ("grpo", 2)]
    assert answer["others"] == [{"name": "grpo · num_steps 2", "runs": [odd.name]}]
    assert answer["left_out"] == [none.name]


def test_a_method_that_is_behind_ends_the_others(asked, runs_dir, make_run):
    make_run(runs_dir, "clip", 0, until=3, state=RunState.RUNNING)
    assert asked()["until"] == 3
