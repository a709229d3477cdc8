"""Methods side by side: seeds pooled, the same bins, equal steps."""

from __future__ import annotations

import time

import pytest

from atrium.runs.status import RunState
from atrium.views.dashboard.run_view_queries import region_of_methods
from atrium.views.dashboard.watcher import Watcher


@pytest.fixture
def asked(runs_dir):
    def ask():
        watcher = Watcher(runs_dir, interval_s=0.05)
        watcher.start()
        try:
            while watcher.progress.num_done < watcher.progress.num_runs:
                time.sleep(0.01)
            return region_of_methods(watcher, list(watcher.scan.entries))
        finally:
            watcher.stop()

    return ask


def figures_of(document):
    return {one.key: one for one in document.sections[0].figures}


def rows_of(document):
    return [row.cells for row in document.sections[0].tables[0].rows]


def test_shares_are_of_the_tokens_of_a_sign_and_bins_are_shared(asked):
    document = asked()
    assert document.title == "All methods at steps 1 to 8"
    assert [(cells[0], cells[1]) for cells in rows_of(document)] == [("atr", 2), ("grpo", 2)]
    assert rows_of(document)[0][3].value == pytest.approx(1.23, abs=0.01)
    figures = figures_of(document)
    for sign in ("positive", "negative"):
        series = figures[f"ratios-{sign}"].series
        assert [(one.name, one.place) for one in series] == [("atr", 0), ("grpo", 1)]
        assert series[0].x == series[1].x
        for one in series:
            assert sum(share or 0.0 for share in one.y[:-1]) == pytest.approx(1.0, abs=1e-4)
    assert {"objective/entropy", "objective/kl_k3"} <= figures.keys()


def test_no_single_run_shortens_a_method(asked, runs_dir, make_run):
    make_run(runs_dir, "atr", 5, until=3, state=RunState.INTERRUPTED)
    make_run(runs_dir, "grpo", 7, num_steps=2)
    make_run(runs_dir, "grpo", 6, until=0, state=RunState.FAILED)
    document = asked()
    assert document.title == "All methods at steps 1 to 8"
    assert [(cells[0], cells[1]) for cells in rows_of(document)] == [("atr", 3), ("grpo", 2)]
    assert [note.text for note in document.notes] == [
        "other runs: grpo · num_steps 2",
        "1 run without a step left out",
    ]


def test_a_method_that_is_behind_ends_the_others(asked, runs_dir, make_run):
    make_run(runs_dir, "clip", 0, until=3, state=RunState.RUNNING)
    document = asked()
    assert document.title == "All methods at steps 1 to 3"
    entropy = figures_of(document)["objective/entropy"]
    assert all(max(one.x) <= 3 for one in entropy.series)
