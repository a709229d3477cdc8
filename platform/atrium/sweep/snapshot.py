"""The state of a sweep as JSON, `runs/sweeps/<name>/state.json`, for displays and reports.

The file is derived from the storage and replaced atomically. Its readers need neither Optuna nor the
storage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atrium.base.atomic import write_json
from atrium.runs.layout import SWEEPS_DIR
from atrium.sweep.claims import Claims
from atrium.sweep.results import SeedResult, as_record
from atrium.sweep.study import SweepStudies, Trial

FORMAT_VERSION = 1
STATE_FILE, DEFINITION_FILE = "state.json", "sweep.json"


def sweep_folder(runs_dir: Path | str, name: str) -> Path:
    """Return the folder of a sweep's files, `<runs_dir>/sweeps/<name>`."""
    return Path(runs_dir) / SWEEPS_DIR / name


def snapshot(studies: SweepStudies, claims: Claims, created: float) -> dict[str, Any]:
    """Return the content of `state.json`: stages, active workers, and all trials.

    Results by problem are left out. `created` is the sweep's creation time in Unix seconds.
    """
    definition = studies.definition
    trials = {stage: studies.trials(stage) for stage in studies.stages}
    is_finished = studies.has_ended()
    workers = [worker for worker in claims.workers() if claims.is_alive(worker) and not worker.has_ended]
    return {
        "format_version": FORMAT_VERSION,
        "name": definition.name,
        "question": definition.question,
        "state": "finished" if is_finished else ("running" if workers else "stopped"),
        "created": created,
        "updated": time.time(),
        "objectives": [objective.model_dump() for objective in definition.objectives],
        "stages": [
            {
                "name": stage.value,
                "num_trials": studies.num_planned(stage),
                "num_ended": sum(trial.has_ended for trial in trials[stage]),
            }
            for stage in studies.stages
        ],
        "workers": [_worker(asdict(worker)) for worker in workers],
        "trials": [
            _trial(trial, claims.num_takeovers(trial.resource))
            for stage in studies.stages
            for trial in trials[stage]
        ],
    }


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the snapshot `state` to `state.json` in `folder`; raise `OSError` if this fails."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STATE_FILE, state)


def described(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON data, without the results of its seeds."""
    planned = asdict(trial.planned)
    del planned["key"]
    return {
        "stage": trial.stage.value,
        "number": trial.number,
        "state": trial.state_name,
        **planned,
        "values": trial.values,
        "standard_errors": trial.standard_errors,
        "reason": trial.reason,
    }


def _trial(trial: Trial, num_takeovers: int) -> dict[str, Any]:
    return {
        **described(trial),
        "coincides_with": trial.coincides_with,
        "num_takeovers": num_takeovers,
        "num_seeds": len(trial.seeds),
        "seeds": _seeds(list(trial.results.values())),
    }


def _seeds(results: Sequence[SeedResult]) -> list[dict[str, Any]]:
    seeds = []
    for result in results:
        record = as_record(result)
        del record["problem_means"]
        record["test"] = {
            name: {key: value for key, value in scores.items() if key not in ("problem_means", "clusters")}
            for name, scores in result.test.items()
        }
        seeds.append(record)
    return seeds


def _worker(state: dict[str, Any]) -> dict[str, Any]:
    state["id"] = state.pop("worker")
    return {key: value for key, value in state.items() if key not in ("has_ended", "pid_started", "beat")}
