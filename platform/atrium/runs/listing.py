"""The list of runs, as a document and as records for `--json`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from atrium.base.nested import setting
from atrium.document.document import Column, Document, Row, Section, Sentence, Table, Tone
from atrium.document.formatting import age, counted, number, value_text
from atrium.runs.find import list_runs
from atrium.runs.reader import RunOverview, Scores
from atrium.runs.status import RunState

_TONES: Mapping[RunState, Tone] = {
    RunState.STARTING: "better",
    RunState.FAILED_START: "muted",
    RunState.RUNNING: "better",
    RunState.INTERRUPTED: "warning",
    RunState.PRUNED: "warning",
    RunState.FAILED: "worse",
    RunState.KILLED: "worse",
    RunState.LOST: "worse",
    RunState.UNKNOWN: "muted",
}


def listing_document(
    runs: Sequence[RunOverview], num_hidden: int, runs_dir: Path | str, text: str
) -> Document:
    """Return a document with a table of `runs` and notes on the problems of these runs.

    A note gives `num_hidden`, the number of failed starts that are not listed. If `runs` is empty, the
    document says that `runs_dir` contains no runs, or that none of its runs has `text` in its name.
    """
    notes = [
        f"{run.folder.name}: {'; '.join(problems)}"
        for run in runs
        if (problems := [*run.problems, *([run.status.error] if run.status.error else [])])
    ]
    said = [Sentence(note, "warning") for note in notes]
    if num_hidden:
        hidden = (
            f"{counted(num_hidden, 'failed start')} hidden; --all lists them, `atrium clean` removes them"
        )
        said.append(Sentence(hidden))
    nothing = f"no runs in {runs_dir}; `atrium train` creates one"
    if text and list_runs(runs_dir):
        nothing = f"no run in {runs_dir} has {text} in its name; `atrium runs` lists all"
    return Document(
        key="runs",
        title="Runs",
        answer=() if runs else (Sentence(nothing),),
        sections=(Section(title="Runs", tables=(_table(runs),)),) if runs else (),
        notes=tuple(said),
    )


def described(run: RunOverview) -> dict[str, object]:
    """Return a run's record, as `atrium runs --json` prints it."""
    status = run.status
    return {
        "name": run.folder.name,
        "path": str(run.folder.path),
        "experiment": run.folder.name.partition("/")[0],
        "algorithm": setting(run.config, "algorithm.name"),
        "divergence": run.config.get("divergence"),
        "seed": run.config.get("seed"),
        "state": run.state,
        "step": status.step,
        "num_steps": status.num_steps,
        "started": status.started,
        "updated": status.updated,
        "wall_s": status.wall_s,
        "error": status.error,
        "evaluations": {benchmark: scores.as_record() for benchmark, scores in run.scores.items()},
        "problems": run.problems,
    }


def _table(runs: Sequence[RunOverview]) -> Table:
    """Return a table with a row for each run; narrow terminals omit columns such as the seed and the age."""
    ks = {scores.last.k for run in runs for scores in run.scores.values()}
    k = ks.pop() if len(ks) == 1 else None
    columns = (
        Column("run", is_text=True),
        Column("algorithm", is_text=True, priority=3),
        Column("divergence", is_text=True, priority=2),
        Column("seed", priority=4),
        Column("state", is_text=True),
        Column("step"),
        Column(f"Mean@{k or 'k'}, %", is_text=True),
        Column("benchmark", is_text=True, priority=5),
        Column("age", is_text=True, priority=1),
    )
    return Table(title="", columns=columns, rows=tuple(map(_row, runs)))


def _row(run: RunOverview) -> Row:
    status = run.status
    benchmark, scores = _judged_on(run.scores)
    algorithm, seed = setting(run.config, "algorithm.name"), run.config.get("seed")
    cells = (
        run.folder.name,
        None if algorithm is None else str(algorithm),
        _divergence(run.config.get("divergence")),
        None if seed is None else str(seed),
        str(run.state),
        f"{status.step}/{status.num_steps}" if status.num_steps else str(status.step),
        _progress(scores) if scores else None,
        benchmark,
        age(time.time() - status.started) if status.started else None,
    )
    return Row(cells, tone=_TONES.get(run.state, "plain"))


def _judged_on(scores: Mapping[str, Scores]) -> tuple[str, Scores | None]:
    """Return the name and scores of the benchmark to show in the list, or ("", None) if `scores` is empty.

    Benchmarks that were evaluated at more than one step are preferred. Among equally preferred benchmarks,
    those of test problems take precedence over those of validation problems.
    """
    names = sorted(
        scores, key=lambda name: (scores[name].first.step == scores[name].last.step, "validation" in name)
    )
    return (names[0], scores[names[0]]) if names else ("", None)


def _progress(scores: Scores) -> str:
    first, last = (value_text(point.mean_at_k, "share") for point in (scores.first, scores.last))
    return first if scores.first.step == scores.last.step else f"{first} → {last}"


def _divergence(value: object) -> str | None:
    if not isinstance(value, Mapping):
        return None
    numbers = [
        number(float(v)) for v in value.values() if isinstance(v, int | float) and not isinstance(v, bool)
    ]
    return f"{value.get('kind')} {'/'.join(numbers)}".strip()
