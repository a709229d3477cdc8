"""Read-only queries for the pages on trust regions and sampled completions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atrium.base.nested import setting
from atrium.base.records import VerdictKind
from atrium.compare.ratio_records import ratios_of
from atrium.compare.trust_region import bin_edges, evenly_chosen, no_counts, window_of_run
from atrium.document.document import Document
from atrium.document.json import to_json
from atrium.runs.status import RunState
from atrium.views.dashboard.curve_queries import (
    EACH,
    METHODS,
    CurveRequest,
    curves_answer,
    groups_of,
    method_arms,
    places_of,
)
from atrium.views.dashboard.region_document import (
    CUTS,
    ESTIMATES,
    OF_METHODS,
    QUANTILES,
    Counted,
    methods_document,
    run_document,
)
from atrium.views.dashboard.runs_scan import RunEntry
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
_MAX_STEPS = 400
_NUM_POINTS = 300


def trust_region_answer(watcher: Watcher, name: str, step: int | None) -> Answer:
    """Return the document of `region_of_run` as JSON data, with the steps that the user can choose from."""
    steps, document = region_of_run(watcher, name, step)
    return {"run": name, "steps": sorted({*steps, *([] if step is None else [step])}), **to_json(document)}


def region_of_run(watcher: Watcher, name: str, step: int | None) -> tuple[list[int], Document]:
    """Return at most 400 of a run's recorded steps, and the document of its ratios at `step`.

    If `step` is None, the document is about all steps. Raises `RunFolderError` for an unknown run.
    """
    entry = watcher.scan.entry(name)
    found = ratios_of(entry.folder.ratios_file, step)
    counts = no_counts() if found is None else found
    table = watcher.index.read(entry.folder)
    columns = {} if table is None else table.columns
    steps = evenly_chosen([int(one) for one in columns.get("step", ())], _MAX_STEPS)
    divergence = setting(entry.overview.config, "divergence")
    window, reason = window_of_run(entry.folder, divergence)
    metrics = (*CUTS, *ESTIMATES, *QUANTILES)
    request = CurveRequest(runs=(name,), metrics=metrics, group_by=EACH, num_points=_NUM_POINTS)
    panels = {one["name"]: one for one in curves_answer(watcher, request)["panels"] if one["series"]}
    region = Counted(name=name, window=window, reason=reason, count_SB=counts)
    edges, why = bin_edges(counts, window), _why_none(entry)
    return steps, run_document(_words(divergence), region, edges, panels, columns, step=step, why_none=why)


def _words(divergence: object) -> str:
    """Describe a divergence with its settings, such as `kl3 (delta 0.0231)`."""
    if not isinstance(divergence, Mapping):
        return "unknown divergence"
    budgets = ", ".join(f"{key} {value}" for key, value in divergence.items() if key != "kind")
    return f"{divergence.get('kind')} ({budgets})" if budgets else str(divergence.get("kind"))


def _why_none(entry: RunEntry) -> str:
    """Return a sentence that says why a run has no ratios to show."""
    status = entry.overview.status
    if entry.overview.state is RunState.FAILED:
        why = status.error or "unknown error"
        return f"This run failed at step {status.step}, before it recorded ratios: {why}"
    return "This run has not recorded ratios: they are recorded at the end of each step with an update"


def region_of_methods(watcher: Watcher, names: Sequence[str], *, is_chosen: bool = False) -> Document:
    """Return the document that compares the ratios of methods, pooled over the runs of each method.

    The document covers all steps up to the last one that all methods have reached. A method has reached a
    step if at least one of its runs has. "Other runs" (see `arm_names`) are listed but not shown, unless
    `is_chosen` says that the user chose each run. Shares are relative to the tokens with the same sign of the
    advantage. Raises `RunFolderError` for an unknown run.
    """
    entries = [watcher.scan.entry(name) for name in dict.fromkeys(names)]
    arms = method_arms(entries, is_chosen=is_chosen)
    others = [arm.name for arm in arms if arm.is_other]
    by_name = {entry.name: entry for entry in entries if entry.overview.status.step > 0}
    groups = groups_of(entries, METHODS, [arm for arm in arms if not arm.is_other])
    groups = {label: own for label, names in groups.items() if (own := [n for n in names if n in by_name])}
    until = min(
        (max(by_name[name].overview.status.step for name in own) for own in groups.values()), default=0
    )
    place = places_of(list(by_name.values()), groups)
    methods = []
    for label, members in groups.items():
        found = [ratios_of(by_name[name].folder.ratios_file, until=until) for name in members]
        first = by_name[members[0]]
        window, reason = window_of_run(first.folder, setting(first.overview.config, "divergence"))
        counts = sum((one for one in found if one is not None), no_counts())
        about = Counted(name=label, window=window, reason=reason, count_SB=counts, place=place[label])
        methods.append(replace(about, num_seeds=len(members)))
    bounded = [one.window for one in methods if one.window is not None and one.window.upper < math.inf]
    widest = max(bounded, key=lambda window: window.upper, default=None)
    request = CurveRequest(
        runs=tuple(by_name), metrics=tuple(OF_METHODS), is_chosen=is_chosen, num_points=_NUM_POINTS
    )
    return methods_document(
        methods,
        bin_edges(sum((one.count_SB for one in methods), no_counts()), widest),
        curves_answer(watcher, request)["panels"] if methods else [],
        until=until,
        others=others,
        num_left_out=len(entries) - len(by_name),
    )


def samples_answer(watcher: Watcher, name: str, source: str, step: int | None, wanted: Filter) -> Answer:
    """Return a run's completions that pass the filter `wanted`, their number, and the available sources.

    `source` is `training` or a benchmark; an unknown source is replaced by the first available one. `step` is
    None for the latest step and -1 for all steps. A step without samples is replaced by the next step with
    samples, or by the last one if there is no later one. At most 500 completions are returned, but their
    number, in the field `num`, counts all that pass the filter. The field `rates` maps each problem to the
    number of its correct samples and the number of all its samples, before filtering. Raises `RunFolderError`
    for an unknown run.
    """
    entry = watcher.scan.entry(name)
    by_source = sources(entry.folder, watcher.scan.runs_dir)
    source = source if source in by_source else next(iter(by_source), TRAINING)
    steps = by_source.get(source, [])
    later = [known for known in steps if step is not None and known >= step]
    chosen = later if step == -1 else later[:1] or steps[-1:]
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
    """Return one completion with the text of each token; raise `RunFolderError` if it does not exist.

    The field `tokens` is None if the completion has no recorded tokens or the run has no readable tokenizer.
    """
    entry = watcher.scan.entry(name)
    path = sample_path(entry.folder, source, step, watcher.scan.runs_dir)
    row = one(path, problem_id, sample_index)
    token_ids = row.get("token_ids") or []
    texts = token_texts(token_ids, entry.folder, watcher.scan.runs_dir) if token_ids else None
    window, _ = window_of_run(entry.folder, setting(entry.overview.config, "divergence"))
    return {
        **row,
        "reward_kind": setting(entry.overview.config, "reward.kind"),
        "run": name,
        "source": source,
        "tokens": texts,
        "window": window and [window.lower, window.upper],
    }
