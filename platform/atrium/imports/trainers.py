"""Readers of trainer logs: completions and state of TRL, validation dumps and metric logs of verl.

Formats: TRL 1.16 (`completions/completions_<step>.parquet`, `trainer_state.json`) and verl 0.9
(`trainer.validation_data_dir`, a file `<step>.jsonl` per validation; `trainer.logger=file`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from atrium.base.errors import ConfigError, DataError
from atrium.base.rows import Row
from atrium.imports.answers import Answer, Curve, Source, Stated, correctness, whole_number
from atrium.imports.files import json_object, rows
from atrium.imports.tables import conversation_text
from atrium.imports.trackers import TrackedRun, curve_source
from atrium.runs.layout import TRAINING

_TRL_COLUMNS = ("step", "prompt", "completion", "advantage")
TRAINER_STATE = "trainer_state.json"
_TURNS = re.compile(r"(?:system\n.*?\n)?user\n(.*?)\n?assistant\s*(?:<think>\s*)?", re.DOTALL)


def is_trl_completions(path: Path, row: Row) -> bool:
    """Return whether a file has the suffix and columns of completions logged by TRL (`log_completions`)."""
    return path.suffix == ".parquet" and row.keys() >= set(_TRL_COLUMNS)


def read_trl_completions(path: Path, first: Row, stated: Stated) -> Source:
    """Read the completions of one training step."""
    rewards = [
        name
        for name, value in first.items()
        if name not in _TRL_COLUMNS and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    reward = stated.columns.get("score") or (rewards[0] if len(rewards) == 1 else "")
    if reward not in first:
        raise ConfigError(
            f"{path}: give --map score=REWARD with one of the file's rewards: "
            f"{', '.join(rewards) or 'it has none'}"
        )
    method = stated_method(path, stated)
    answers = (
        Answer(
            method=method,
            is_correct=correctness(row.get(reward), stated, place),
            place=place,
            seed=stated.seed,
            benchmark=stated.benchmark or TRAINING,
            step=recorded_step(row.get("step"), stated, place),
            question=conversation_text(row.get("prompt")),
            text=conversation_text(row.get("completion")),
        )
        for place, row in rows(path)
    )
    return Source(
        path=path,
        format="TRL completions",
        mapping=(f"method is {method}", f"score is the reward {reward}"),
        answers=answers,
        printed=_logged_reward(path, first, stated.benchmark or TRAINING) if len(rewards) == 1 else {},
        differences=(
            "TRL logs completions of training batches: each step has other problems, and the score is a "
            "training reward, not an evaluation",
        ),
    )


def _logged_reward(path: Path, row: Row, benchmark: str) -> dict[str, float]:
    """Return the mean reward that `trainer_state.json` has for the row's step, keyed by `benchmark`.

    The result is empty if there is none.
    """
    state = path.parent.parent / TRAINER_STATE
    history = json_object(state).get("log_history") if state.is_file() else None
    for entry in history if isinstance(history, list) else ():
        if isinstance(entry, Mapping) and entry.get("step") == row["step"] and "reward" in entry:
            return {benchmark: float(str(entry["reward"]))}
    return {}


def read_trainer_state(path: Path, stated: Stated) -> Source:
    """Read the curves in `trainer_state.json` of TRL or any other transformers trainer."""
    history = json_object(path).get("log_history")
    if not isinstance(history, list):
        raise DataError(f"{path} has no log_history; choose a trainer_state.json of TRL or transformers")
    steps: dict[int, dict[str, object]] = {}
    for entry in history:
        if isinstance(entry, Mapping) and "step" in entry:
            step = whole_number(entry["step"], "step", str(path))
            own = {name: value for name, value in entry.items() if name != "epoch"}
            steps[step] = {**own, **steps.get(step, {})}
    run = TrackedRun(method=stated_method(path, stated), steps=steps)
    return curve_source(path, "TRL trainer_state", [run], stated)


def is_verl_dump(path: Path, row: Row) -> bool:
    """Return whether a file has the suffix and columns of verl's validation generations."""
    return path.suffix == ".jsonl" and row.keys() >= {"input", "output", "score", "step"}


def read_verl_dump(path: Path, first: Row, stated: Stated) -> Source:
    """Read the generations of one validation.

    The score is the column of `--map score=COLUMN`, otherwise `acc` if verl recorded it, otherwise `score`.
    """
    score = stated.columns.get("score") or ("acc" if "acc" in first else "score")
    if score not in first:
        raise ConfigError(f"{path}: --map score={score}: unknown column; use one of {', '.join(first)}")
    method = stated_method(path, stated)
    answers = (
        Answer(
            method=method,
            is_correct=correctness(row.get(score), stated, place),
            place=place,
            seed=stated.seed,
            benchmark=stated.benchmark or str(row.get("data_source") or "validation_dump"),
            step=recorded_step(row.get("step"), stated, place),
            problem=str(row.get("uid") or ""),
            question=_asked(conversation_text(row.get("input"))),
            gold=str(row.get("gts") or ""),
            text=conversation_text(row.get("output")),
        )
        for place, row in rows(path)
    )
    return Source(
        path=path,
        format="verl generations",
        mapping=(f"method is {method}", f"score is {score}", "problems are told apart by their input"),
        answers=answers,
    )


def _asked(prompt: str) -> str:
    """Return the user's turn in a rendered chat prompt, or the whole prompt if it has another form."""
    found = _TURNS.fullmatch(prompt)
    return found[1] if found else prompt


def printed_in_curve(curve: Curve, benchmark: str, step: int, num_samples: int) -> float | None:
    """Return an evaluation's Mean@K from the metrics of verl or prime-rl, or None if it is not known.

    The mean is known only if exactly one metric at `step` has a matching name. The names of prime-rl's
    metrics must contain `benchmark` and K (`num_samples`), and those of verl's metrics only K.
    """
    names = re.compile(
        rf"val-core/.*/mean@{num_samples}|eval/{re.escape(benchmark)}/all/[^/]+/avg@{num_samples}"
    )
    found = [value for name, value in curve.steps.get(step, {}).items() if names.fullmatch(name)]
    return found[0] if len(found) == 1 else None


def is_verl_log(path: Path, row: Row) -> bool:
    """Return whether a file has the suffix and keys of verl's file logger."""
    return path.suffix == ".jsonl" and row.keys() == {"step", "data"} and isinstance(row["data"], Mapping)


def read_verl_log(path: Path, _first: Row, stated: Stated) -> Source:
    """Read the curves written by verl's file logger."""
    steps: dict[int, dict[str, object]] = {}
    for place, row in rows(path):
        step, data = whole_number(row.get("step"), "step", place), row.get("data")
        if not isinstance(data, Mapping):
            raise DataError(f"{place}: data must be an object of metrics; correct the line")
        steps.setdefault(step, {}).update(data)
    run = TrackedRun(method=stated_method(path, stated), steps=steps)
    return curve_source(path, "verl file log", [run], stated)


def recorded_step(value: object, stated: Stated, place: str) -> int:
    """Return the step of a row; raise `ConfigError` if `--step` states another one."""
    step = whole_number(value, "step", place)
    if stated.step not in (None, step):
        raise ConfigError(
            f"{place}: --step {stated.step} cannot be used, since the file records step {step}; remove --step"
        )
    return step


def stated_method(path: Path, stated: Stated) -> str:
    """Return the method given by `--method`; raise `ConfigError` if it is missing."""
    if not stated.method:
        raise ConfigError(f"{path} does not name the method; give --method NAME")
    return stated.method
