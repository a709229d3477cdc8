"""`atrium sweep report` and `atrium sweep list`: what a sweep says, on screen and in its folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrium.cli.runs_command import standard_output
from atrium.cli.sweep_table import trials_table
from atrium.cli.sweep_verdict import arm_sentence, verdict_of
from atrium.sweep.claims import Claims, this_worker
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.final import best_trial
from atrium.sweep.plan import Stage
from atrium.sweep.report import analysis, curves_csv, trials_csv, winner_yaml
from atrium.sweep.setup import join, known_storage, open_studies, report_folder, sweep_names
from atrium.sweep.snapshot import STATE_FILE, snapshot, sweep_folder, write_state
from atrium.sweep.storage import SweepStorage
from atrium.sweep.study import SweepStudies
from atrium.tracking.atomic import explained, write_json, write_text
from atrium.tracking.reader import read_object

if TYPE_CHECKING:
    from rich.console import Console


def report(runs_dir: str, name: str, url: str | None = None) -> int:
    """Write a sweep's report, and say the main things."""
    storage = SweepStorage(url or known_storage(runs_dir, name))
    definition, created = join(storage, name, runs_dir)
    folder = report_folder(runs_dir, name)
    with storage.explained():
        studies = open_studies(storage, definition)
        state = snapshot(studies, Claims(storage, name, this_worker()), created)
        content = analysis(studies, state)
        content["verdict"], content["no_verdict"] = verdict_of(studies)
    content["sentences"] = sentences(definition, content)
    with explained("write the report of sweep", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder.parent, state)
        written = _write(folder, studies, content)
    _show(standard_output(), content, written)
    return 0


def list_sweeps(runs_dir: str) -> int:
    """Say which sweeps there are and how they stand."""
    names = sweep_names(runs_dir)
    if not names:
        sys.stdout.write(f"there are no sweeps in {runs_dir}; `atrium sweep --help` says how to make one\n")
    for name in names:
        state, _ = read_object(sweep_folder(runs_dir, name) / STATE_FILE)
        stages = state.get("stages")
        counts = ", ".join(
            f"{stage['name']} {stage['num_ended']} of {stage['num_trials'] or '?'}"
            for stage in (stages if isinstance(stages, list) else [])
        )
        sys.stdout.write(f"{name}  {state.get('state', 'unknown')}  {counts}\n")
    return 0


def sentences(definition: SweepDefinition, content: Mapping[str, Any]) -> list[str]:
    """What may be said, and what may not, in words."""
    said = []
    best = content["best"]
    if best is not None:
        said.append(
            f"best on validation: {' = '.join(best['labels'])} at {_score(best)}, from "
            f"{len(content['ranking'])} settings; chosen as the highest, so its own number flatters it"
        )
    merged = [one for one in content["ranking"] if len(one["labels"]) > 1]
    said += [f"{' and '.join(one['labels'])} are the same method and were run once" for one in merged]
    verdict = content["verdict"]
    if verdict is not None:
        tuned = "tuned with as many settings" if content["baseline_is_tuned"] else "which was not tuned"
        seeds = ", ".join(str(seed) for seed in verdict["seeds"])
        said.append(
            f"on test problems, with {len(verdict['seeds'])} fresh seeds, against the baseline ({tuned}): "
            f"{verdict['words']} (seeds {seeds})"
        )
        said += [arm_sentence(arm) for arm in verdict["arms"]]
        said += [f"left out: {one}" for one in verdict["left_out"]]
    elif content["no_verdict"] is not None:
        said.append(f"no verdict: {content['no_verdict']}")
    elif definition.final is not None:
        said.append("winner and baseline have not met on fresh seeds yet, so nothing is decided")
    else:
        said.append("no comparison on fresh seeds was asked for, so differences here decide nothing")
    if content["importances"]:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in content["importances"].items())
        said.append(f"share of the differences that each parameter explains: {shares}")
    if content["pareto"]:
        said.append(f"no other trial is better in every objective than: {content['pareto']}")
    return said


def _score(one: Mapping[str, Any]) -> str:
    mean = one["mean_at_k"]
    text = f"Mean@{one['k']} {100 * mean['value']:.1f} %"
    if mean["interval"] is None:
        return f"{text} (one seed)"
    low, high = mean["interval"]
    return f"{text} [{100 * max(low, 0):.1f}, {100 * min(high, 1):.1f}] over {one['num_seeds']} seeds"


def _write(folder: Path, studies: SweepStudies, content: dict[str, Any]) -> list[Path]:
    """Write figures, tables and the winner; the paths of what a person would open."""
    from atrium.compare.figures.sweeps import draw_sweep_figures

    figures = draw_sweep_figures(content, folder, folder.parents[2] / ".cache")
    content["figures"] = [f"report/{path.name}" for path in figures]
    write_text(folder / "trials.csv", trials_csv(content["ranking"]))
    written = [*figures, folder / "trials.csv"]
    if content["curves"]:
        write_text(folder / "curve.csv", curves_csv(content["curves"]))
        written.append(folder / "curve.csv")
    definition = studies.definition
    winner = best_trial(studies.trials(Stage.SEARCH), definition.objectives[0].direction)
    if winner is not None and len(definition.objectives) == 1:
        write_text(folder / "winner.yaml", winner_yaml(definition, winner))
        written.append(folder / "winner.yaml")
    write_json(folder / "report.json", content)
    return written


def _show(console: Console, content: Mapping[str, Any], written: Sequence[Path]) -> None:
    state = content["state"]
    order = {one["number"]: place for place, one in enumerate(content["ranking"])}
    trials = [one for one in state["trials"] if one["stage"] != "final"]
    trials.sort(key=lambda one: (one["stage"] != "search", order.get(one["number"], 0)))
    console.print(f"sweep {state['name']}  {state['state']}")
    console.print(trials_table(state, trials))
    for sentence in content["sentences"]:
        console.print(f"  {sentence}", soft_wrap=True)
    console.print()
    for path in written:
        console.print(f"  {path}", soft_wrap=True)
    winner = [path for path in written if path.name == "winner.yaml"]
    if winner:
        console.print(f"  make train EXPERIMENT={winner[0]}", soft_wrap=True)
