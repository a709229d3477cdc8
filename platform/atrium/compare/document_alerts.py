"""The alerts of a comparison: short statements of what weakens its answer, each with details."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from atrium.compare.confounds import common_sweep, unknown_lines
from atrium.compare.counted_runs import left_out_experiments
from atrium.compare.planned_seeds import NOT_PLANNED
from atrium.compare.run_comparison import RunsComparison
from atrium.document.document import Sentence
from atrium.document.formatting import counted
from atrium.stats.failures import FailureRate

_MOST_ALERTS = 4
_MOST_NAMED = 3
"""The largest number of arms or settings that an alert names; of more, it states the number."""
_LONG = 100
"""The number of characters from which the values of a confound are left to the alert's detail."""
_JUDGED = frozenset({"better", "worse", "not_distinguishable", "depends_on_diverged"})


def comparison_alerts(comparison: RunsComparison) -> tuple[Sentence, ...]:
    """Return at most four alerts, most serious first. The last one may combine several."""
    found = [
        *_left_out(comparison),
        *_confounds(comparison),
        *_seeds(comparison),
        *_selected(comparison),
        *_failed("diverged", {one.arm.name: one.diverged for one in comparison.arms}),
        *collapse_alerts({one.arm.name: one.collapses for one in comparison.arms}),
    ]
    if len(found) <= _MOST_ALERTS:
        return tuple(found)
    first, rest = found[: _MOST_ALERTS - 1], found[_MOST_ALERTS - 1 :]
    details = "; ".join(one.detail for one in rest if one.detail)
    return (*first, _alert("also", f"also: {'; '.join(one.text for one in rest)}", details))


def collapse_alerts(collapses: Mapping[str, Mapping[int, Collection[str]]]) -> list[Sentence]:
    """Return an alert on collapsed runs, in a list that is empty if no run collapsed.

    `collapses` contains the findings of collapse, keyed by arm and then by seed; they are empty for a run
    that did not collapse. A seed without an entry is not counted, since it is unknown whether its run
    collapsed.
    """
    rates, findings = {}, {}
    for name, own in collapses.items():
        rates[name] = FailureRate(seeds=tuple(seed for seed in own if own[seed]), num_runs=len(own))
        rules = [rule for of_seed in own.values() for rule in of_seed]
        counts = (f"{rule} in {counted(rules.count(rule), 'run')}" for rule in dict.fromkeys(rules))
        findings[name] = f", {', '.join(counts)}"
    return _failed("collapsed", rates, findings)


def _left_out(comparison: RunsComparison) -> Iterator[Sentence]:
    """Yield alerts on experiments that are left out as a whole, and on runs without an outcome."""
    for name, reasons in left_out_experiments(comparison.left_out, comparison.run_names).items():
        yield _alert("left_out", f"experiment {name} left out: {reasons}")
    missing = {arm: runs for arm, runs in comparison.planned.missing.items() if runs}
    if missing:
        counts = [f"{len(runs)} of {arm}" for arm, runs in missing.items()]
        states = [f"{run.name} {run.reason}" for runs in missing.values() for run in runs]
        yield _alert("missing", f"runs without a result: {_listed(counts, 'arm')}", "; ".join(states))


def _confounds(comparison: RunsComparison) -> Iterator[Sentence]:
    """Yield an alert on confounds, and one on settings that imported runs do not record."""
    words = [one.words for one in comparison.confounds]
    if len(words) == 1 and len(words[0]) < _LONG:
        yield _alert("confound", f"confound: {words[0]}")
    elif words:
        names = _listed([one.name for one in comparison.confounds], "setting")
        yield _alert("confound", f"confounds: the arms differ in {names}", "; ".join(words))
    if lines := unknown_lines(comparison.unknown):
        several = f"settings not recorded by {counted(len(comparison.unknown), 'arm')}"
        yield _alert("unknown", *(lines if len(lines) == 1 else (several, "; ".join(lines))))


def _seeds(comparison: RunsComparison) -> Iterator[Sentence]:
    """Yield alerts on arms with one seed, on seeds that share random draws, and on unplanned seeds."""
    if single := [one.arm.name for one in comparison.arms if len(one.arm.runs) == 1]:
        detail = f"arms with one seed ({', '.join(single)}) are not judged and have no interval for new seeds"
        yield _alert("one_seed", f"one seed, not judged: {_listed(single, 'arm')}", detail)
    if shared := comparison.shared_draws:
        # A correlation of 0.67 between five seeds makes an interval 2.7 times too narrow.
        detail = (
            f"the seeds of {', '.join(shared)} were evaluated with the same random draws, so their noise is "
            "not independent and intervals over seeds are up to three times too narrow; `atrium evaluate "
            "--run RUN` evaluates a checkpoint with random draws of its own"
        )
        yield _alert(
            "draws", f"intervals too narrow: shared random draws in {_listed(shared, 'arm')}", detail
        )
    kinds = {pair.verdict.kind for pair in comparison.pairs}
    if comparison.planned.plan is None and kinds & _JUDGED:
        yield _alert("plan", "number of seeds not planned", NOT_PLANNED)


def _selected(comparison: RunsComparison) -> Iterator[Sentence]:
    """Yield an alert if the compared runs include runs that a sweep used to select its winner."""
    sweep = common_sweep([run for one in comparison.arms for run in one.arm.runs.values()])
    searched, compared = sweep.get("seeds"), {seed for one in comparison.arms for seed in one.arm.runs}
    if sweep.get("final") and isinstance(searched, list) and compared.intersection(searched):
        name, seeds = sweep.get("name"), ", ".join(map(str, sorted(compared.intersection(searched))))
        yield _alert(
            "selection",
            f"scores biased by selection: sweep {name} chose its winner with these runs",
            f"the winner was chosen on seeds {seeds}, so its scores on them are biased upward; `atrium sweep "
            f"report {name}` compares it with the baseline on fresh seeds",
        )


def _failed(
    what: str, rates: Mapping[str, FailureRate], findings: Mapping[str, str] | None = None
) -> list[Sentence]:
    """Return an alert on the arms with failed runs, in a list that is empty if no run failed.

    `what` names the kind of failure. `rates` and `findings` are keyed by arm, and a text in `findings` is
    appended to the details of its arm.
    """
    failed = {name: rate for name, rate in rates.items() if rate.seeds}
    if not failed:
        return []
    counts = [f"{len(rate.seeds)} of {rate.num_runs} runs of {name}" for name, rate in failed.items()]
    details = (
        f"{name}: {what} in {rate.words}{(findings or {}).get(name, '')}" for name, rate in failed.items()
    )
    return [_alert(what, f"{what}: {_listed(counts, 'arm')}", "; ".join(details))]


def _listed(words: Sequence[str], noun: str) -> str:
    """Return the words, separated by commas, or their number with the noun, such as `5 runs`.

    The number is returned if there are more than three words.
    """
    return ", ".join(words) if len(words) <= _MOST_NAMED else counted(len(words), noun)


def _alert(key: str, text: str, detail: str = "") -> Sentence:
    return Sentence(text, "warning", key, detail)
