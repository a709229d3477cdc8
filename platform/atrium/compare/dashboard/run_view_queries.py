"""Queries about one run's trust region and its sampled completions. Pure reading."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from atrium.compare.dashboard.samples import (
    TRAINING,
    Filter,
    listed,
    one,
    sample_path,
    sources,
    token_texts,
)
from atrium.compare.dashboard.watcher import Watcher
from atrium.compare.ratio_records import ratios_of
from atrium.compare.trust_region import (
    SIGNS,
    RatioCounts,
    count_ratios,
    evenly_chosen,
    histogram,
    no_counts,
    window_in_use,
)
from atrium.errors import RunFolderError
from atrium.nested import setting

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
    window, reason = window_in_use(divergence)
    found = histogram(counted, window)
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
        if found is None
        else {
            "edges": found.edges.tolist(),
            "counts": dict(zip(SIGNS, found.count_SB.round(2).tolist(), strict=True)),
        },
        "num_tokens": dict(zip(SIGNS, counts.count_SB.sum(axis=1).astype(int).tolist(), strict=True)),
        "cut": {
            sign: {"low": low, "high": high}
            for sign, (low, high) in zip(SIGNS, counts.cut_S2.astype(int).tolist(), strict=True)
        },
    }


def samples_answer(watcher: Watcher, name: str, source: str, step: int | None, wanted: Filter) -> Answer:
    """The samples of a run: their sources, and the completions that pass the filter.

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
    return {
        "run": name,
        "sources": by_source,
        "source": source,
        "step": -1 if step == -1 else (chosen[0] if chosen else None),
        "num": len(rows),
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
    window, _ = window_in_use(setting(entry.overview.config, "divergence"))
    return {
        **row,
        "run": name,
        "source": source,
        "tokens": texts,
        "window": window and [window.lower, window.upper],
    }


def _counts_of(path: Path) -> RatioCounts:
    stat = path.stat()
    return _counted(str(path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2000)
def _counted(path: str, _modified: int, _size: int) -> RatioCounts:
    return count_ratios(Path(path))
