"""The table of runs. Its rows have versions, so that a page fetches only rows that have changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atrium.base.metrics import REWARD
from atrium.compare.counted_runs import VALIDATION
from atrium.compare.run_settings import differing
from atrium.runs.method_settings import tells_methods_apart
from atrium.views.dashboard.run_queries import (
    arms_by_experiment,
    default_of,
    method_of,
    row_of,
    spark_of,
    state_answer,
    trainings_by_experiment,
)
from atrium.views.dashboard.runs_scan import RunEntry
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table of runs.

    `own` is the run's data, and `shown` is this data together with the run's method. `version` is the
    version of the data in which the row last changed. `made_of` identifies the inputs from which `own` was
    computed.
    """

    version: int
    made_of: tuple[int, tuple[str, ...]]
    own: Answer
    shown: Answer


class RunsTable:
    """The rows of a watcher's runs. Each request first updates the rows of the runs that have changed."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()
        self._version = -1
        self._gone_at = -1
        self._head: Answer = {}
        self._rows: Mapping[str, _Row] = {}

    def answer(self, since: int | None) -> Answer:
        """Return the rows that changed after version `since`.

        Returns all rows if `since` is None or unknown, or if a run has been removed since then.
        """
        state = state_answer(self._watcher)  # read first, so that later changes have a later version
        version = state["version"]
        with self._lock:
            if version != self._version:
                self._update(version)
            is_whole = since is None or since > version or since < self._gone_at
            rows = [row.shown for row in self._rows.values() if is_whole or row.version > (since or 0)]
            return {**self._head, "runs": rows, "is_whole": is_whole, "now": time.time(), **state}

    def _update(self, version: int) -> None:
        entries = self._watcher.scan.entries
        settings = [entry.settings for entry in entries.values() if entry.settings]
        keys = sorted(differing(settings), key=_order)
        arms = arms_by_experiment(list(entries.values()))
        method = {name: method_of(arm) for arm_list in arms for arm in arm_list for name in arm.runs}
        before = self._rows
        order = sorted(entries.values(), key=lambda entry: (-entry.started, entry.name))
        self._rows = {
            entry.name: self._row(entry, keys, method.get(entry.name, method_of(None)), version)
            for entry in order
        }
        if not before.keys() <= self._rows.keys() or self._version < 0:
            self._gone_at = version
        self._version = version
        benchmarks = {name for entry in order for name in entry.overview.scores}
        self._head = {
            "experiment": default_of(trainings_by_experiment(self._watcher)),
            "keys": keys,
            "shared": _shared(settings, keys),
            "benchmarks": sorted(benchmarks, key=lambda name: (VALIDATION in name, name)),
            "runs_dir": str(self._watcher.scan.runs_dir.absolute()),
            "problem": self._watcher.scan.problem,
        }

    def _row(self, entry: RunEntry, keys: Sequence[str], method: Answer, version: int) -> _Row:
        before = self._rows.get(entry.name)
        made_of = (self._watcher.changed_at.get(entry.name, version), tuple(keys))
        if before is None or before.made_of != made_of:
            table = self._watcher.index.read(entry.folder)
            rewards = None if table is None else table.columns.get(REWARD.name)
            own = {**row_of(entry, keys), "spark": spark_of(rewards)}
        else:
            own = before.own
        shown = {**own, **method}
        if before is not None and before.shown == shown:
            return _Row(before.version, made_of, own, before.shown)
        return _Row(version, made_of, own, shown)


def _order(key: str) -> tuple[bool, ...]:
    """Return the sort key of a setting: settings of methods come first, then the seed, then all others."""
    is_divergence = key.startswith("divergence.")
    return key != "algorithm.name", not is_divergence, not tells_methods_apart(key), key != "seed"


def _shared(settings: Sequence[Mapping[str, str]], keys: Sequence[str]) -> dict[str, str]:
    """Return the first run's settings, except those in `keys`.

    `keys` are the names of the settings in which the runs differ.
    """
    differ = set(keys)
    return {key: value for key, value in (settings[0] if settings else {}).items() if key not in differ}
