"""The document of a sweep: its conclusions, and tables of its settings, contrasts and families."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atrium.document.document import (
    Document,
    Estimate,
    Passage,
    Section,
    Sentence,
    Table,
    plain_table,
)
from atrium.document.formatting import counted
from atrium.stats.failures import FailureRate
from atrium.stats.wording import estimate, not_distinguishable
from atrium.sweep.analysis import Setting, SweepReport
from atrium.sweep.contrasts import PlannedContrast, PlannedContrasts
from atrium.sweep.families import ComparedFamilies
from atrium.sweep.fresh_seeds import FreshArm, FreshVerdict
from atrium.sweep.plan import Stage
from atrium.sweep.snapshot_document import SCORES

CONTRAST_COLUMNS = ("contrast", "predicted", "observed, with 95 % interval", "result")
_FALSE_ALARMS = 0.05
_SAID = {
    "agrees": "as predicted",
    "contradicted": "contradicted",
    "unclear": "not distinguishable from no difference",
    "missing": "without a result",
}
_NULL_SAID = {"seen": "a difference by chance", "not_seen": "no difference"}
_NOTE = "note/"
"""The prefix of the key of a sentence that is a note and not part of the answer."""
_NONE_ASKED = "the sweep has no comparison on fresh seeds, so it gives no verdict on differences"


def sweep_document(report: SweepReport, files: Sequence[Path] = ()) -> Document:
    """Return the document of a sweep. It lists the paths of `files`, the files of the sweep's report."""
    said = list(sentences(report))
    state = report.state
    order = {one.trial.number: place for place, one in enumerate(report.ranking)}
    trials = [one for one in state["trials"] if one["stage"] != "final"]
    trials.sort(key=lambda one: (one["stage"] != "search", order.get(one["number"], 0)))
    tables = [trials_table(state, trials)]
    if report.contrasts is not None:
        tables += [contrast_table(report.contrasts, outcome) for outcome in report.contrasts.outcomes]
    if report.families is not None:
        tables.append(family_table(report.families))
    lines = [str(path) for path in files]
    lines += [f"atrium train experiment={path}" for path in files if path.name == "winner.yaml"]
    passages = (Passage("\n".join(lines)),) if lines else ()
    return Document(
        key=f"sweep/{state['name']}",
        title=f"sweep {state['name']}  {state['state']}",
        subtitle=state["question"],
        alerts=tuple(one for one in said if one.tone == "warning"),
        answer=tuple(one for one in said if one.tone != "warning" and not one.key.startswith(_NOTE)),
        sections=(
            Section(title="Results", tables=tuple(tables)),
            Section(title="Files", passages=passages),
        ),
        notes=tuple(one for one in said if one.tone != "warning" and one.key.startswith(_NOTE)),
    )


def sentences(report: SweepReport) -> Iterator[Sentence]:
    """Yield conclusions, notes and warnings.

    The keys of notes begin with `_NOTE`, and warnings have the tone `warning`.
    """
    if report.best is not None and report.contrasts is None:
        yield Sentence(best_sentence(report.best, report.ranking), key="best")
    for one in report.ranking:
        if len(labels := one.trial.planned.labels) > 1:
            text = f"{' and '.join(labels)} are the same method and were run once"
            yield Sentence(text, key=f"{_NOTE}merged")
    if report.verdict is not None:
        yield from _verdict_sentences(report.verdict, _tuned_words(report))
    elif report.no_verdict is not None:
        yield Sentence(f"no verdict: {report.no_verdict}", "warning", key="verdict")
    elif report.contrasts is not None:
        yield from _contrast_sentences(report.contrasts)
    else:
        yield Sentence(_NONE_ASKED, "warning", key="verdict")
    if report.families is not None:
        yield from _family_sentences(report.families)
    if report.importances:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in report.importances.items())
        text = f"share of the variance that each parameter explains: {shares}"
        yield Sentence(text, key=f"{_NOTE}importances")
    if report.pareto:
        yield Sentence(f"Pareto-optimal trials: {', '.join(map(str, report.pareto))}", key="pareto")


def best_sentence(best: Setting, ranking: Sequence[Setting]) -> str:
    """Describe the best setting: its score on validation problems, if it has one, and the selection bias.

    `ranking` contains all settings from which the best one was selected.
    """
    if best.mean_at_k.value is None:
        return (
            f"best by the objective: {best.name}, without a score on validation, from {len(ranking)} "
            "settings; the objective is biased, since it selected the setting"
        )
    if len(ranking) > 1 and len({one.mean_at_k.value for one in ranking}) == 1:
        return (
            f"all {len(ranking)} settings have the same score on validation, {_score_text(best)}, so none of "
            f"them is the best; {best.name} counts as the winner"
        )
    return (
        f"best on validation: {best.name} at {_score_text(best)}, from {len(ranking)} settings; the score is "
        "biased upward, since it selected the setting"
    )


def _score_text(one: Setting) -> str:
    assert one.mean_at_k.value is not None
    text = f"Mean@{one.k} {100 * one.mean_at_k.value:.1f} %"
    if one.mean_at_k.interval is None:
        seeds = "one seed" if one.num_seeds == 1 else f"on each of {one.num_seeds} seeds"
        return f"{text} ({seeds})"
    low, high = one.mean_at_k.interval
    return f"{text} [{100 * low:.1f}, {100 * high:.1f}] over {one.num_seeds} seeds"


def _tuned_words(report: SweepReport) -> str:
    if not report.baseline_is_tuned:
        return "not tuned"
    num = {stage["name"]: stage["num_trials"] for stage in report.state["stages"]}
    if num[Stage.BASELINE] == num[Stage.SEARCH]:
        return "tuned with as many settings"
    return f"tuned with {counted(num[Stage.BASELINE], 'setting')}, the search with {num[Stage.SEARCH]}"


def _verdict_sentences(verdict: FreshVerdict, tuned: str) -> Iterator[Sentence]:
    seeds = ", ".join(str(seed) for seed in verdict.seeds)
    together = f"; intervals hold simultaneously over {verdict.together}" if verdict.together else ""
    together += f"; {verdict.sources}" if verdict.sources else ""
    for pair in verdict.pairs:
        words = pair.verdict.words
        if pair.verdict.kind == "not_distinguishable":
            words = f"{estimate(pair.comparison.difference.value)}; {words}"
        yield Sentence(
            f"on test problems, with {len(verdict.seeds)} fresh seeds, {pair.candidate} against the baseline "
            f"({tuned}): {words} (seeds {seeds}{together})",
            pair.verdict.tone,
            key=f"verdict/{pair.candidate}",
        )
    for arm in verdict.arms:
        yield Sentence(_arm_text(arm), key=f"{_NOTE}{arm.name}")
    for text in verdict.left_out:
        yield Sentence(f"left out: {text}", "warning", key="left out")


def _arm_text(arm: FreshArm) -> str:
    """Describe an arm's mean score, how many of its runs diverged, and how many collapsed."""
    mean = f"{arm.name} scores {100 * arm.mean_at_k:.1f} % on average over {arm.num_seeds} seeds"
    if arm.iqm is not None and any(rate and rate.seeds for rate in (arm.diverged, arm.collapsed)):
        mean += f" (interquartile mean {100 * arm.iqm:.1f} %)"
    return f"{mean}; {_rate_text('diverged', arm.diverged)}; {_rate_text('collapsed', arm.collapsed)}"


def _rate_text(what: str, rate: FailureRate | None) -> str:
    return f"{what}: unknown" if rate is None else f"{what}: {rate.words}"


def _contrast_sentences(found: PlannedContrasts) -> Iterator[Sentence]:
    """Yield sentences on the predictions: whether they were committed in advance, and how many came true.

    If there are null contrasts, another sentence says how many of their intervals exclude 0.
    """
    if found.commit:
        text = f"predictions: {found.predictions}, committed in {found.commit[:12]} before the first run"
        yield Sentence(text, key=f"{_NOTE}predictions")
    else:
        yield Sentence(
            f"the predictions in {found.predictions} were not committed before the first run, so they may "
            "have been written after it",
            "warning",
            key="predictions",
        )
    for outcome in found.outcomes:
        rows = [row for row in found.rows if row.outcome == outcome and row.predicted]
        names = {kind: [row.name for row in rows if row.kind == kind] for kind in _SAID}
        parts = [f"{len(of_kind)} {_SAID[kind]}" for kind, of_kind in names.items() if of_kind]
        failed = f" ({', '.join(names['contradicted'])})" if names["contradicted"] else ""
        if not rows:
            continue
        text = f"{outcome}: of {len(rows)} predicted contrasts, {', '.join(parts)}{failed}"
        yield Sentence(text, key=f"prediction/{outcome}")
    nulls = [row for row in found.rows if row.is_null and row.interval is not None]
    if nulls:
        num_seen = sum(row.kind == "seen" for row in nulls)
        yield Sentence(
            f"null contrasts: {num_seen} of {len(nulls)} intervals exclude 0; "
            f"{_FALSE_ALARMS * len(nulls):.1f} are expected by chance",
            key=f"{_NOTE}chance",
        )


def _family_sentences(found: ComparedFamilies) -> Iterator[Sentence]:
    """Yield one sentence for each family: its difference from the baseline, averaged over all compared x.

    If the families have no common range of x, yields a warning instead.
    """
    if not found.differences:
        text = f"the families have no common range of {found.x}, so they cannot be compared"
        yield Sentence(text, "warning", key="family")
    for family, differences in found.differences.items():
        average = differences[-1]
        text = f"{found.y} of {family} and {found.baseline} at equal {found.x}, on average"
        difference = difference_text(average.difference, average.interval)
        if average.interval is None:
            text += f": {difference}, without an interval"
        elif average.interval[0] <= 0.0 <= average.interval[1]:
            text += f": {not_distinguishable(f'{max(-average.interval[0], average.interval[1]):.3g}')}"
        else:
            text += f" differ by {difference}"
        yield Sentence(text, key=f"family/{family}")


def contrast_table(found: PlannedContrasts, outcome: str) -> Table:
    """Return the table of all contrasts in one outcome: prediction, observed difference and result."""
    together = f"intervals hold simultaneously over {max(row.num_together for row in found.rows)} contrasts"
    return plain_table(
        f"{outcome}: {found.outcomes[outcome]}; {together} (Bonferroni)",
        CONTRAST_COLUMNS,
        [contrast_cells(row) for row in found.rows if row.outcome == outcome],
    )


def contrast_cells(row: PlannedContrast) -> tuple[str, ...]:
    """Return the texts of a contrast for the columns `CONTRAST_COLUMNS`."""
    if row.predicted is None:
        predicted = "no difference (judged separately)" if row.is_null else "none"
    else:
        size = row.predicted.size
        predicted = row.predicted.sign if size is None else f"{size:+.4g}"
    return row.name, predicted, difference_text(row.difference, row.interval), _said_text(row)


def difference_text(difference: float | None, interval: tuple[float, float] | None) -> str:
    """Format a difference with its interval, such as `+0.1 [+0.05, +0.15]`.

    Returns an empty string if the difference is None.
    """
    if difference is None:
        return ""
    text = f"{difference:+.4g}"
    return text if interval is None else f"{text} [{interval[0]:+.4g}, {interval[1]:+.4g}]"


def _said_text(row: PlannedContrast) -> str:
    if row.kind == "missing":
        return f"without a result: no value for {', '.join(row.missing)}"
    if row.predicted is None:
        return _NULL_SAID[row.kind] if row.is_null else ""
    said, size = _SAID[row.kind], row.predicted.size
    if size is not None and row.interval is not None and not row.interval[0] <= size <= row.interval[1]:
        return f"{said}; the interval excludes the predicted size"
    return said


def family_table(found: ComparedFamilies) -> Table:
    """Return the table of each family's difference from the baseline at each compared x."""
    return plain_table(
        f"{found.y} at equal {found.x}, minus that of {found.baseline}: mean and interval over "
        f"{found.num_seeds} seeds, simultaneous over {len(found.differences)} families at each place",
        ("family", *found.places),
        [
            (family, *(difference_text(one.difference, one.interval) for one in differences))
            for family, differences in found.differences.items()
        ],
    )


def trials_table(state: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of trials with their settings, states, seeds, values and windows.

    `trials` are records in the snapshot `state`.
    """
    metrics = [objective["metric"] for objective in state["objectives"]]
    titles = ("setting", "trial", "state", "seeds", f"{', '.join(metrics)} ± standard error", "window")
    doing = {(worker["stage"], worker["trial"]): worker for worker in state["workers"]}
    rows = []
    for trial in trials:
        worker = doing.get((trial["stage"], trial["number"]))
        done = sum(seed["state"] in ("finished", "diverged") for seed in trial["seeds"])
        seeds = f"{done}/{trial['num_seeds']}"
        if worker is not None:
            seeds += f", seed {worker['seed']}: step {worker['step']}/{worker['num_steps']}"
        name = trial_name(trial) + (f" ({trial['reason']})" if trial["reason"] else "")
        number = f"{trial['stage']} {trial['number']}"
        window = _window(trial["window"])
        rows.append((name, number, trial["state"], seeds, trial_values(trial, metrics), window))
    return plain_table("Settings", titles, rows)


def trial_name(trial: Mapping[str, Any]) -> str:
    """Return the labels of a trial, or its settings if it has no labels.

    The result is empty until a sampler has chosen the setting.
    """
    return " = ".join(trial["labels"]) or ", ".join(f"{k}={v}" for k, v in trial["settings"].items())


def trial_values(trial: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Format a trial's values of `metrics`, the metrics of the objectives, with standard errors.

    Scores are in percent. For a trial that is not complete, the result is the Mean@K averaged over its seeds
    so far, in parentheses, or an empty string if no seed has a Mean@K.
    """
    values, errors = trial["values"], trial["standard_errors"]
    if values is None:
        known = [seed["mean_at_k"] for seed in trial["seeds"] if seed["mean_at_k"] is not None]
        return f"({100 * sum(known) / len(known):.1f} %)" if known else ""
    are_shares = [name in SCORES for name in metrics]
    return ", ".join(map(_value_text, values, errors or [None] * len(values), are_shares))


def _value_text(value: float, error: float | None, is_share: bool) -> str:
    text = f"{100 * value:.1f} %" if is_share else f"{value:,.4g}"
    if error is None:
        return text
    return f"{100 * value:.1f} ± {100 * error:.1f} %" if is_share else f"{text} ± {error:,.2g}"


def _window(window: Sequence[float | None] | None) -> Estimate | str:
    """Return a window [l, u] as a cell, which is empty for a method without a constant window."""
    if window is None:
        return ""
    low, high = window
    assert low is not None
    return Estimate(None, (low, math.inf if high is None else high), "ratio")
