"""Logs of trainers: completions and state of TRL, validation dumps and the file logger of verl.

Sources: TRL 1.16 (`completions/completions_<step>.parquet`, `trainer_state.json`) and verl 0.9
(`trainer.validation_data_dir`, a file `<step>.jsonl` per validation; `trainer.logger=file`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from atrium.base.errors import ConfigError, DataError
from atrium.base.metric_names import known_words, mapped
from atrium.base.rows import Row
from atrium.imports.answers import Answer, Curve, Source, Stated, correctness, whole_number
from atrium.imports.files import json_object, rows
from atrium.imports.tables import conversation_text
from atrium.runs.layout import TRAINING

_TRL_COLUMNS = ("step", "prompt", "completion", "advantage")
TRAINER_STATE = "trainer_state.json"
_TURNS = re.compile(r"(?:system\n.*?\n)?user\n(.*?)\n?assistant\s*(?:<think>\s*)?", re.DOTALL)


def is_trl_completions(path: Path, row: Row) -> bool:
    """Whether TRL's `log_completions` wrote the file."""
    return path.suffix == ".parquet" and row.keys() >= set(_TRL_COLUMNS)


def read_trl_completions(path: Path, stated: Stated) -> Source:
    """The completions of one training step."""
    found = rows(path)
    first = next(found)
    rewards = [
        name
        for name, value in first[1].items()
        if name not in _TRL_COLUMNS and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    reward = stated.columns.get("score") or (rewards[0] if len(rewards) == 1 else "")
    if reward not in first[1]:
        raise ConfigError(f"{path}: give --map score=REWARD; the rewards are {', '.join(rewards) or 'none'}")
    method = _method(path, stated)

    def answers() -> Iterator[Answer]:
        for place, row in chain([first], found):
            yield Answer(
                method=method,
                is_correct=correctness(row.get(reward), stated, place),
                place=place,
                seed=stated.seed,
                benchmark=stated.benchmark or TRAINING,
                step=whole_number(row.get("step"), "step", place),
                question=conversation_text(row.get("prompt")),
                text=conversation_text(row.get("completion")),
            )

    return Source(
        path=path,
        format="TRL completions",
        mapping=(f"method is {method}", f"score is the reward {reward}"),
        answers=answers(),
        printed=_logged_reward(path, first[1], stated.benchmark or TRAINING) if len(rewards) == 1 else {},
        differences=(
            "TRL logs completions of training batches: each step has problems of its own, and the score is a "
            "reward in training, not an evaluation",
        ),
    )


def _logged_reward(path: Path, row: Row, benchmark: str) -> dict[str, float]:
    """The mean reward that `trainer_state.json` beside the completions has for their step."""
    state = path.parent.parent / TRAINER_STATE
    history = json_object(state).get("log_history") if state.is_file() else None
    for entry in history if isinstance(history, list) else ():
        if isinstance(entry, Mapping) and entry.get("step") == row["step"] and "reward" in entry:
            return {benchmark: float(str(entry["reward"]))}
    return {}


def read_trainer_state(path: Path, stated: Stated) -> Source:
    """The curves of TRL's, or any transformers trainer's, `trainer_state.json`."""
    history = json_object(path).get("log_history")
    if not isinstance(history, list):
        raise DataError(f"{path}: has no log_history; expected trainer_state.json of TRL or transformers")
    steps: dict[int, dict[str, float]] = {}
    for entry in history:
        if isinstance(entry, Mapping) and "step" in entry:
            step = whole_number(entry["step"], "step", str(path))
            own = {name: value for name, value in entry.items() if name not in ("step", "epoch")}
            steps[step] = {**mapped(own), **steps.get(step, {})}
    return _curve_source(path, "TRL trainer_state", _method(path, stated), stated, steps, history[:1])


def is_verl_dump(path: Path, row: Row) -> bool:
    """Whether verl dumped the generations."""
    return path.suffix == ".jsonl" and row.keys() >= {"input", "output", "score", "step"}


def read_verl_dump(path: Path, stated: Stated) -> Source:
    """The generations of one validation. The score is `acc` where verl's reward records it."""
    found = rows(path)
    first = next(found)
    score = stated.columns.get("score") or ("acc" if "acc" in first[1] else "score")
    if score not in first[1]:
        raise ConfigError(f"{path}: --map score={score}: the columns are {', '.join(first[1])}")
    method = _method(path, stated)

    def answers() -> Iterator[Answer]:
        for place, row in chain([first], found):
            yield Answer(
                method=method,
                is_correct=correctness(row.get(score), stated, place),
                place=place,
                seed=stated.seed,
                benchmark=stated.benchmark or str(row.get("data_source") or "validation_dump"),
                step=whole_number(row.get("step"), "step", place),
                problem=str(row.get("uid") or ""),
                question=_asked(conversation_text(row.get("input"))),
                gold=str(row.get("gts") or ""),
                text=conversation_text(row.get("output")),
            )

    return Source(
        path=path,
        format="verl generations",
        mapping=(f"method is {method}", f"score is {score}", "problems are told apart by their input"),
        answers=answers(),
    )


def _asked(prompt: str) -> str:
    """The user's turn of a decoded chat template with roles on lines of their own, else the prompt."""
    found = _TURNS.fullmatch(prompt)
    return found[1] if found else prompt


def printed_in_curve(curve: Curve, benchmark: str, step: int, num_samples: int) -> float | None:
    """The mean over samples that verl's or prime-rl's metrics give for an evaluation, if they give one."""
    names = re.compile(
        rf"val-core/.*/mean@{num_samples}|eval/{re.escape(benchmark)}/all/[^/]+/avg@{num_samples}"
    )
    found = [value for name, value in curve.steps.get(step, {}).items() if names.fullmatch(name)]
    return found[0] if len(found) == 1 else None


def is_verl_log(path: Path, row: Row) -> bool:
    """Whether verl's file logger wrote the file."""
    return path.suffix == ".jsonl" and row.keys() == {"step", "data"} and isinstance(row["data"], Mapping)


def read_verl_log(path: Path, stated: Stated) -> Source:
    """The curves of verl's file logger."""
    steps: dict[int, dict[str, float]] = {}
    first: list[object] = []
    for place, row in rows(path):
        step, data = whole_number(row.get("step"), "step", place), row.get("data")
        if not isinstance(data, Mapping):
            raise DataError(f"{place}: data must be an object of metrics")
        first = first or [data]
        steps[step] = {**steps.get(step, {}), **mapped(data)}
    return _curve_source(path, "verl file log", _method(path, stated), stated, steps, first)


def _curve_source(
    path: Path,
    name: str,
    method: str,
    stated: Stated,
    steps: Mapping[int, Mapping[str, float]],
    first: list[object],
) -> Source:
    if not any(steps.values()):
        raise DataError(f"{path}: holds no metrics of steps")
    own = [
        str(key)
        for entry in first
        if isinstance(entry, Mapping)
        for key in entry
        if key not in ("step", "epoch")
    ]
    return Source(
        path=path,
        format=name,
        mapping=(f"method is {method}", known_words(own)),
        curves=(Curve(method=method, steps=steps, seed=stated.seed),),
    )


def _method(path: Path, stated: Stated) -> str:
    if not stated.method:
        raise ConfigError(f"{path}: trainers do not record the method's name; give --method NAME")
    return stated.method
