"""The rule that decides whether a run collapsed, for comparisons and all pages of the dashboard."""

from __future__ import annotations

from collections.abc import Mapping

from atrium.base.errors import RunFolderError
from atrium.base.recorded import as_integer, read_object
from atrium.compare.counted_runs import VALIDATION
from atrium.compare.outcomes import outcome_table, read_answers
from atrium.runs.diagnosis import COLLAPSES
from atrium.runs.reader import RunOverview, Scores, read_evaluations, scores_of
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import DIVERGED, RunState
from atrium.stats.failures import fell_below_start

SCORE_FELL = "score below its start"
"""The finding that a run's last scores are significantly below those before training."""


def collapses_of(overview: RunOverview) -> dict[str, int] | None:
    """Return the findings that make a run count as collapsed, with the step at which each began (0: unknown).

    These are the collapses that `runs.diagnosis` found at the end of training, and `SCORE_FELL` if the last
    scores are significantly below those before training. The result is empty if the run did not collapse. It
    is None if no collapse was found and the last score cannot be compared with a score before training,
    because a score is missing, samples cannot be read, or the problems differ.
    """
    found = {rule: step for rule, step in recorded_findings(overview.folder).items() if rule in COLLAPSES}
    has_fallen = _has_fallen(overview)
    if has_fallen:
        found[SCORE_FELL] = 0
    return None if has_fallen is None and not found else found


def recorded_findings(folder: RunFolder) -> dict[str, int]:
    """Return the step at which each finding in a run's `summary.json` began (0: unknown), by rule.

    The result is empty if the file cannot be read.
    """
    findings = read_object(folder.summary_file)[0].get("findings")
    found = [one for one in findings if isinstance(one, Mapping)] if isinstance(findings, list) else []
    steps = [(one.get("rule"), as_integer(one.get("first_step"))) for one in found]
    return {rule: step or 0 for rule, step in steps if isinstance(rule, str)}


def _has_fallen(overview: RunOverview) -> bool | None:
    """Return whether the last test scores are significantly below those before training (None if unknown).

    Without test problems, validation problems are used. A run that diverged counts as always wrong if its
    last policy was not evaluated.
    """
    status = overview.status
    has_diverged = overview.state is RunState.FAILED and status.cause == DIVERGED
    scores = overview.scores
    if has_diverged:  # the summary may lack the evaluation of the policy that the run diverged to
        try:
            scores = {name: scores_of(points) for name, points in read_evaluations(overview.folder).items()}
        except OSError:
            return None
    known = {
        name: points
        for name, points in scores.items()
        if points.first.step == 0 and (has_diverged or points.last.step > 0)
    }
    known = {name: known[name] for name in known if VALIDATION not in name} or known
    if not known:
        return None
    is_wrong = has_diverged and all(points.last.step <= status.step for points in known.values())
    if not is_wrong and all(_has_risen(points) for points in known.values()):
        return False  # without reading the answers
    before, after = [], []
    try:
        for name, points in known.items():
            start = read_answers(overview.folder, name, 0)
            end = read_answers(overview.folder, name, points.last.step)
            if list(start.num_correct) != list(end.num_correct):
                return None
            before.append(outcome_table([start]).mean_at_k()[0])
            after.append(outcome_table([end]).mean_at_k()[0] * (not is_wrong))
    except RunFolderError:
        return None
    return fell_below_start(before, after)


def _has_risen(points: Scores) -> bool:
    first, last = points.first.mean_at_k, points.last.mean_at_k
    return first is not None and last is not None and last >= first
