from __future__ import annotations

import pytest

from atrium.compare.dashboard.run_costs import with_costs
from atrium.compare.dashboard.watcher import Watcher
from atrium.compare.outcomes import read_evaluated_run


@pytest.fixture
def watcher(runs_dir):
    made = Watcher(runs_dir)
    made.scan.scan()
    return made


def test_the_small_file_says_what_all_metrics_say(watcher):
    for entry in watcher.scan.entries.values():
        assert with_costs(watcher, entry) == entry.folder, "nothing is indexed yet"
        watcher.index.refresh(entry.folder)
        folder = with_costs(watcher, entry)
        assert folder.metrics_file != entry.folder.metrics_file
        short, whole = read_evaluated_run(folder), read_evaluated_run(entry.folder)
        assert short.cost == whole.cost
        assert short.evaluations == whole.evaluations


def test_it_is_written_anew_only_where_the_costs_changed(watcher):
    entry = next(iter(watcher.scan.entries.values()))
    watcher.index.refresh(entry.folder)
    path = with_costs(watcher, entry).metrics_file
    inode = path.stat().st_ino
    with_costs(watcher, entry)
    assert path.stat().st_ino == inode
    assert path.is_relative_to(watcher.scan.runs_dir / ".cache")
