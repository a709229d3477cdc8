"""Queries about one run's trust region and its sampled completions. Pure reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atrium.base.errors import RunFolderError
from atrium.base.nested import setting
from atrium.base.records import VerdictKind
from atrium.compare.ratio_records import ratios_of
from atrium.compare.trust_region import (
    SIGNS,
    RatioCounts,
    bin_edges,
    binned,
    count_ratios,
    evenly_chosen,
    no_counts,
    window_of_run,
)
from atrium.views.dashboard.curve_queries import METHODS, groups_of, method_arms, places_of
from atrium.views.dashboard.samples import (
    TRAINING,
    Filter,
    listed,
    one,
    sample_path,
    sources,
    token_texts,
)
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]

_MAX_LISTED = 500
_MAX_FILES = 400


def trust_region_answer(watcher: Watcher, name: str, step: int | None) -> Answer:
    """The ratios of the rollouts recorded at a step, or at all steps, and the run's window.

    Raises `RunFolderError` for an unknown run.
    """
    entry = watcher.scan.entry(name)
    steps = sources(entry.folder, watcher.scan.runs_dir).get(TRAINING, [])
    chosen = evenly_chosen(steps, _MAX_FILES) if step is None else [step]
    counts, problems = no_counts(), []
    for one_step in chosen:
        try:
            path = sample_path(entry.folder, TRAINING, one_step, watcher.scan.runs_dir)
            counts = counts + _counts_of(path)
        except (RunFolderError, OSError) as error:
            problems.append(str(error))
    counted, of_all = ratios_of(entry.folder.ratios_file, step), True
    if counted is None:
        counted, of_all = counts, False
    divergence = setting(entry.overview.config, "divergence")
    window, reason = window_of_run(entry.folder, divergence)
    edges = bin_edges(counted, window)
    return {
        "run": name,
        "steps": steps,
        "num_files": len(chosen) - len(problems),
        "problems": problems,
        "divergence": divergence,
        "window": window and [window.lower, window.upper],
        "window_reason": reason,
        "is_of_all_tokens": of_all,
        "histogram": None
        if edges is None
        else {
            "edges": edges.tolist(),
            "counts": dict(zip(SIGNS, binned(counted, edges).round(2).tolist(), strict=True)),
        },
        "num_tokens": dict(zip(SIGNS, counts.count_SB.sum(axis=1).astype(int).tolist(), strict=True)),
        "cut": {
            sign: {"low": low, "high": high}
            for sign, (low, high) in zip(SIGNS, counts.cut_S2.astype(int).tolist(), strict=True)
        },
    }


def arms_answer(watcher: Watcher, names: Sequence[str], *, is_chosen: bool = False) -> Answer:
    """The ratios of the runs' methods side by side: seeds pooled, up to the last step that all methods made.

    Other runs and runs that ended early shorten no method. Shares are of the tokens with that sign of the
    advantage. Raises `RunFolderError` for an unknown run.
    """
    entries = [watcher.scan.entry(name) for name in dict.fromkeys(names)]
    arms = method_arms(entries, is_chosen=is_chosen)
    others = [arm for arm in arms if arm.is_other]
    trained = [entry for entry in entries if entry.overview.status.step > 0]
    by_name = {entry.name: entry for entry in trained}
    groups = groups_of(entries, METHODS, [arm for arm in arms if not arm.is_other])
    groups = {label: own for label, names in groups.items() if (own := [n for n in names if n in by_name])}
    until = min(
        (max(by_name[name].overview.status.step for name in own) for own in groups.values()), default=0
    )
    place = places_of(trained, groups)
    counted, windows = {}, {}
    for label, members in groups.items():
        found = [ratios_of(by_name[name].folder.ratios_file, until=until) for name in members]
        first = by_name[members[0]]
        counted[label] = sum((one for one in found if one is not None), no_counts())
        windows[label] = window_of_run(first.folder, setting(first.overview.config, "divergence"))
    bounded = [window for window, _ in windows.values() if window is not None and window.upper < math.inf]
    widest = max(bounded, key=lambda window: window.upper, default=None)
    edges = bin_edges(sum(counted.values(), no_counts()), widest)
    return {
        "until": until,
        "edges": None if edges is None else edges.tolist(),
        "arms": [
            {
                "name": label,
                "place": place[label],
                "runs": members,
                "window": window and [window.lower, window.upper],
                "window_reason": reason,
                "shares": _shares(counted[label], edges),
            }
            for label, members in groups.items()
            for window, reason in [windows[label]]
        ],
        "others": [{"name": arm.name, "runs": list(arm.runs)} for arm in others],
        "left_out": [entry.name for entry in entries if entry.overview.status.step <= 0],
    }


def _shares(counts: RatioCounts, edges: NDArray[np.float64] | None) -> Answer | None:
    """By sign, the share of its tokens in each bin; None where nothing was counted."""
    if edges is None or not counts.count_SB.sum():
        return None
    count_SB = binned(counts, edges)
    share_SB = count_SB / np.maximum(count_SB.sum(axis=1, keepdims=True), 1.0)
    return dict(zip(SIGNS, share_SB.round(7).tolist(), strict=True))


def samples_answer(watcher: Watcher, name: str, source: str, step: int | None, wanted: Filter) -> Answer:
    """The samples of a run: their sources, the completions that pass the filter, and how many are correct.

    `rates` are each problem's correct samples and all of them, whatever the filter.

    Without a step they are those of the latest one, and -1 means all steps. Raises `RunFolderError` for an
    unknown run.
    """
    entry = watcher.scan.entry(name)
    by_source = sources(entry.folder, watcher.scan.runs_dir)
    source = source if source in by_source else next(iter(by_source), TRAINING)
    steps = by_source.get(source, [])
    chosen = steps[-1:] if step is None else [known for known in steps if step in (-1, known)]
    paths = [sample_path(entry.folder, source, one_step, watcher.scan.runs_dir) for one_step in chosen]
    rows, problems = listed(paths, wanted)
    rates: dict[str, list[int]] = {}
    for row in listed(paths, Filter())[0]:
        counted = rates.setdefault(str(row["problem_id"]), [0, 0])
        counted[0] += row["verdict"] == VerdictKind.CORRECT
        counted[1] += 1
    return {
        "run": name,
        "sources": by_source,
        "source": source,
        "step": -1 if step == -1 else (chosen[0] if chosen else None),
        "num": len(rows),
        "rates": rates,
        "rows": rows[:_MAX_LISTED],
        "problems": problems,
    }


def sample_answer(
    watcher: Watcher, name: str, source: str, step: int, problem_id: str, sample_index: int
) -> Answer:
    """One completion with its tokens. Raises `RunFolderError` where there is none."""
    entry = watcher.scan.entry(name)
    path = sample_path(entry.folder, source, step, watcher.scan.runs_dir)
    row = one(path, problem_id, sample_index)
    token_ids = row.get("token_ids") or []
    texts = token_texts(token_ids, entry.folder, watcher.scan.runs_dir) if token_ids else None
    window, _ = window_of_run(entry.folder, setting(entry.overview.config, "divergence"))
    return {
        **row,
        "run": name,
        "source": source,
        "tokens": texts,
        "window": window and [window.lower, window.upper],
    }


def _counts_of(path: Path) -> RatioCounts:
    stat = path.stat()
    return _count_ratios(str(path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2000)
def _count_ratios(path: str, _modified: int, _size: int) -> RatioCounts:
    return count_ratios(Path(path))
